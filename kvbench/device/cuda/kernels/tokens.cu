// Token in, token out, and what tests and gates need. Compile with -DWT=F16|Q8|Q4|F32.

struct Embed {
  const u8* w;           // [V][K], as matvec.cu lays weights out
  const u16* scale;
  const int* state;
  float* x;              // [R][K]
  u64* sums;             // [R]: the audit's, started anew
  int K, V;
};

__device__ __forceinline__ float weight_at(const u8* w, const u16* scale, i64 at) {
#if WT == F16
  return half_bits(((const u16*)w)[at]);
#elif WT == Q8
  return half_bits(scale[at / 32]) * (float)((const signed char*)w)[at];
#elif WT == Q4
  const int b = w[at / 32 * 16 + at % 16];
  return half_bits(scale[at / 32]) * ((float)(at % 32 < 16 ? b & 15 : b >> 4) - 8.0f);
#else
  return ((const float*)w)[at];
#endif
}

extern "C" __global__ void __launch_bounds__(256) embed(const Embed a) {
  const int k = blockIdx.x * 256 + threadIdx.x, r = blockIdx.y;
  grid_wait();
  grid_release();          // in this order: what follows finds all that was before this token
  const int token = state_of(a.state, r, TOKEN);
  if (k == 0) a.sums[r] = 0;
  if (k < a.K)   // a token outside the vocabulary becomes NaN rather than a stray read
    a.x[(i64)r * a.K + k] = (u32)token < (u32)a.V ? weight_at(a.w, a.scale, (i64)token * a.K + k)
                                                  : __uint_as_float(0x7fffffffu);
}

// As NumPy's argmax: NaN counts as the greatest, the first of equals wins.
__device__ __forceinline__ void better(float& v, int& at, float w, int from) {
  const bool nan_v = v != v, nan_w = w != w;
  const bool greater = nan_w ? !nan_v : (!nan_v && w > v);
  const bool equal = nan_w ? nan_v : w == v;
  if (greater || (equal && from < at)) v = w, at = from;
}
__device__ __forceinline__ void warp_best(float& v, int& at) {
#pragma unroll
  for (int m = 16; m; m >>= 1)
    better(v, at, __shfl_xor_sync(0xffffffffu, v, m), __shfl_xor_sync(0xffffffffu, at, m));
}

#define PIECES 64
struct Argmax {
  const float* logits;   // [outputs][V]
  float* best;           // [outputs][PIECES]
  int* best_at;          // [outputs][PIECES]
  int* chosen;           // [outputs]
  int* state;            // all rows of the batch, or null: nothing moves on
  int V, n_rows;
  int rows[16];          // the row that each output belongs to
};

extern "C" __global__ void __launch_bounds__(256) argmax_pieces(const Argmax a) {
  __shared__ float value[8];
  __shared__ int index[8];
  const int r = blockIdx.y, each = (a.V + PIECES - 1) / PIECES, from = blockIdx.x * each;
  const int to = from + each < a.V ? from + each : a.V;
  grid_release();
  grid_wait();
  float v = -INFINITY;
  int at = a.V;
  for (int i = from + threadIdx.x; i < to; i += 256) better(v, at, a.logits[(i64)r * a.V + i], i);
  warp_best(v, at);
  if (threadIdx.x % 32 == 0) value[threadIdx.x / 32] = v, index[threadIdx.x / 32] = at;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < 8; w++) better(v, at, value[w], index[w]);
    a.best[r * PIECES + blockIdx.x] = v;
    a.best_at[r * PIECES + blockIdx.x] = at;
  }
}

// One block, one warp per output.
extern "C" __global__ void choose(const Argmax a) {
  const int r = threadIdx.x / 32, lane = threadIdx.x % 32;
  grid_release();
  grid_wait();
  float v = a.best[r * PIECES + lane];
  int at = a.best_at[r * PIECES + lane];
  better(v, at, a.best[r * PIECES + 32 + lane], a.best_at[r * PIECES + 32 + lane]);
  warp_best(v, at);
  if (lane == 0) {
    a.chosen[r] = at;
    if (a.state) a.state[a.rows[r] * STATE_COLUMNS + TOKEN] = at;
  }
  if (a.state)
    for (int i = threadIdx.x; i < a.n_rows; i += blockDim.x) {
      a.state[i * STATE_COLUMNS + POSITION] += 1;
      a.state[i * STATE_COLUMNS + CELL] += 1;
    }
}

// Audit: total[r][part] += sum of w[i] (2 i + 1) mod 2^64 over the 32-bit words of the rows that
// row r attends to, padding included; then sums[r] = sums[r] MIX + total, K before V. The order of
// addition does not matter in this group, and totals are left at zero for the next window.
struct Audit {
  const u8* k;
  const u8* v;
  const int* state;
  const int* cells;
  u64* total;            // [R][2]
  u64* sums;             // [R]
  i64 stream_bytes, pitch;
  int cell_stride, lane_column;
  int rows, tile_last;   // tile_last >= 0: every row reads what that row of the launch reads
};
#define MIX 6364136223846793005ull

extern "C" __global__ void __launch_bounds__(256) audit_windows(const Audit a) {
  const int part = blockIdx.y, r = blockIdx.z, of = a.tile_last < 0 ? r : a.tile_last;
  grid_release();
  grid_wait();
  const u8* base = (part ? a.v : a.k) + state_of(a.state, of, a.lane_column) * a.stream_bytes;
  const int count = state_of(a.state, of, POSITION) + 1, each = (int)(a.pitch / 4);
  u64 total = 0;
  for (int j = blockIdx.x * 8 + threadIdx.x / 32; j < count; j += gridDim.x * 8) {
    const int cell = a.cells ? a.cells[(i64)r * a.cell_stride + j] : j;
    const u32* w = (const u32*)(base + cell * a.pitch);
    for (int i = threadIdx.x % 32; i < each; i += 32)
      total += (u64)w[i] * (u64)(2 * ((i64)j * each + i) + 1);
  }
#pragma unroll
  for (int m = 16; m; m >>= 1) total += __shfl_xor_sync(0xffffffffu, total, m);
  if (threadIdx.x % 32 == 0) atomicAdd(a.total + r * 2 + part, total);
}

extern "C" __global__ void audit_fold(const Audit a) {
  const int r = threadIdx.x;
  grid_release();
  grid_wait();
  if (r >= a.rows) return;
  for (int part = 0; part < 2; part++) {
    a.sums[r] = a.sums[r] * MIX + a.total[r * 2 + part];
    a.total[r * 2 + part] = 0;
  }
}

// Idles for so many nanoseconds: an injected delay.
extern "C" __global__ void spin(u64 ns) {
  u64 start, now;
  grid_release();
  grid_wait();
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - start < ns);
}
