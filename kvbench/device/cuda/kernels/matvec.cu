// y[r] = W x[r] for up to ROWS rows, W read once. Compile with -DWT=F16|Q8|Q4|F32 -DROWS=1..16,
// -DNR: rows of W per warp, -DDEPTH: loads of 16 bytes under way for each of them.
//
// A row's bits depend on nothing but its own x and W: lane l of a warp owns the values
// [(32 j + l) VPL, + VPL) for j = 0, 1, ..., adds them in that order with fused multiply-adds, and
// the 32 lanes are summed by one butterfly. ROWS, the number of rows of W per warp and the tiling
// of K change which registers hold the sums, never their order.

#if WT == F16
#define VPL 8
#elif WT == Q8
#define VPL 16
#elif WT == Q4
#define VPL 32
#else
#define VPL 4
#endif
#define CHUNK (32 * VPL)                 // values of K that a warp takes in one 16-byte load
#define BLOCKED (WT == Q8 || WT == Q4)   // one scale per 32 values
#define WARPS 8
#define THREADS (WARPS * 32)
#define TILE (ROWS < 4 ? 32768 / ROWS : 16384 / ROWS)    // values of each x in shared memory
#define SLOTS 512                        // partial sums of squares, whatever the number of threads

enum Mode { PLAIN, RESIDUAL, GATED, RECURRENT };

struct Mat {
  const u8* w;          // [N][K] of f16, f32, int8, or nibbles (16 bytes: values 0-15 low, 16-31 high)
  const u16* scale;     // [N][K/32] f16 (Q8, Q4)
  const float* x;       // [rows][ldx]
  const float* gain;    // [K], or null: x is RMS-normed first
  float* y;             // [rows][ldy]
  float* memory;        // RECURRENT: [streams][N/2]
  const int* state;     // RECURRENT: the rows' state
  i64 ldx, ldy;
  int K, N, rows;
  float eps;
};

__device__ __forceinline__ float4 weight4(const uint4& v, int g) {
  // Values 4g .. 4g+3 of a lane's load, without the block's scale.
  const u32* w = &v.x;
#if WT == F16
  return make_float4(lo_half(w[2 * g]), hi_half(w[2 * g]), lo_half(w[2 * g + 1]), hi_half(w[2 * g + 1]));
#elif WT == Q8
  u32 q = w[g] ^ 0x80808080u;
  return make_float4(byte_plus(q, 0, SIGNED_BIAS), byte_plus(q, 1, SIGNED_BIAS),
                     byte_plus(q, 2, SIGNED_BIAS), byte_plus(q, 3, SIGNED_BIAS));
#elif WT == Q4
  u32 q = (w[g & 3] >> (g < 4 ? 0 : 4)) & 0x0f0f0f0fu;
  return make_float4(byte_plus(q, 0, NIBBLE_BIAS), byte_plus(q, 1, NIBBLE_BIAS),
                     byte_plus(q, 2, NIBBLE_BIAS), byte_plus(q, 3, NIBBLE_BIAS));
#else
  return make_float4(__uint_as_float(w[0]), __uint_as_float(w[1]), __uint_as_float(w[2]), __uint_as_float(w[3]));
#endif
}

// Where value k of a tile lies in shared memory: a lane's VPL values become VPL/4 vectors whose
// 32 lanes are neighbours, so that 16-byte reads have no bank conflict.
__device__ __forceinline__ int place_of(int k) {
  int in = k % CHUNK;
  return k - in + ((in % VPL) / 4) * 128 + (in / VPL) * 4;
}

// Results per warp and group of rows of W; which result is the n-th of this warp in group g.
template <bool PAIRED>
__device__ __forceinline__ int result_of(int g, int n) {
  const int per_warp = PAIRED ? NR / 2 : NR;
  return (g * WARPS + threadIdx.x / 32) * per_warp + n;
}

// A warp's rows of W, read ahead through a ring in shared memory: a lane copies, awaits and uses 16
// bytes of its own, so that no barrier is needed and the next rows are under way while these are
// summed. W is constant: the ring is filled while the kernel before is still making x.
template <bool PAIRED>
struct Stream {
  const Mat& m;
  uint4* ring;            // [DEPTH][NR][THREADS]
  u32* scales;            // likewise: two scales, of which one is this lane's
  const int lane;         // values from the start of a chunk to this lane's
  int group, k;           // what comes next
  i64 at[NR];             // this lane's first value of each row, or -1 past the end

  __device__ __forceinline__ Stream(const Mat& m, void* shared)
      : m(m), ring((uint4*)shared + threadIdx.x), scales((u32*)((uint4*)shared + DEPTH * NR * THREADS) + threadIdx.x),
        lane(threadIdx.x % 32 * VPL), group(blockIdx.x), k(0) {
    take(group, at);
  }
  __device__ __forceinline__ void take(int g, i64 (&at)[NR]) const {
    const int results = PAIRED ? m.N / 2 : m.N;
#pragma unroll
    for (int n = 0; n < NR; n++) {
      const int i = result_of<PAIRED>(g, PAIRED ? n / 2 : n);
      at[n] = i < results ? (i64)(i + (PAIRED ? n % 2 * results : 0)) * m.K + lane : -1;
    }
  }
  // Orders the next chunk of every row into `slot`.
  __device__ __forceinline__ void fetch(int slot) {
#pragma unroll
    for (int n = 0; n < NR; n++) {
      const bool in = at[n] >= 0 && k + lane < m.K;
      const i64 i = in ? at[n] + k : 0;
      const i64 byte = WT == F16 ? 2 * i : WT == Q8 ? i : WT == Q4 ? i / 2 : 4 * i;
      copy_async<16>(ring + (slot * NR + n) * THREADS, m.w + byte, in);
#if BLOCKED
      copy_async<4>(scales + (slot * NR + n) * THREADS, m.scale + i / 64 * 2, in);
#endif
    }
    copy_commit();
    k += CHUNK;
    if (k >= m.K) k = 0, group += gridDim.x, take(group, at);
  }
};

// acc += this slot's chunk of W times x[*][at, at + CHUNK) of the tile. odd: which of a pair of
// scales is meant.
template <bool PAIRED>
__device__ __forceinline__ void use(const Stream<PAIRED>& w, int slot, float (&acc)[NR][ROWS], const float* xs, int tile, int at, const bool (&odd)[NR]) {
  const int lane = threadIdx.x % 32;
  uint4 v[NR];
#pragma unroll
  for (int n = 0; n < NR; n++) v[n] = w.ring[(slot * NR + n) * THREADS];
#if BLOCKED
  float part[NR][ROWS];
#pragma unroll
  for (int n = 0; n < NR; n++)
#pragma unroll
    for (int r = 0; r < ROWS; r++) part[n][r] = 0.0f;
#else
  float(&part)[NR][ROWS] = acc;
#endif
#pragma unroll
  for (int g = 0; g < VPL / 4; g++) {
    float4 four[NR];
#pragma unroll
    for (int n = 0; n < NR; n++) four[n] = weight4(v[n], g);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float4 x = *(const float4*)(xs + r * tile + at + g * 128 + lane * 4);
#pragma unroll
      for (int n = 0; n < NR; n++) {
        part[n][r] = fmaf(four[n].x, x.x, part[n][r]);
        part[n][r] = fmaf(four[n].y, x.y, part[n][r]);
        part[n][r] = fmaf(four[n].z, x.z, part[n][r]);
        part[n][r] = fmaf(four[n].w, x.w, part[n][r]);
      }
    }
  }
#if BLOCKED
#pragma unroll
  for (int n = 0; n < NR; n++) {
    const u32 pair = w.scales[(slot * NR + n) * THREADS];
    const float d = odd[n] ? hi_half(pair) : lo_half(pair);
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[n][r] = fmaf(d, part[n][r], acc[n][r]);
  }
#endif
}

// Brings x[*][k0, k0 + tile) into shared memory, zeros past K and past the last row, and adds the
// squares: slot s owns the values 4s mod 4 SLOTS, in ascending order, whatever the tile. LOADS go
// out together: all blocks do this at once, and a trip to memory is longer than the rest.
__device__ __forceinline__ void stage(const Mat& m, float* xs, float (*squares)[SLOTS], int k0, int tile) {
  const int LOADS = 8;
  for (int r = 0; r < ROWS; r++) {
    for (int first = threadIdx.x * 4; first < tile; first += LOADS * THREADS * 4) {
      float4 x[LOADS];
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        const int k = k0 + first + i * THREADS * 4;
        x[i] = make_float4(0, 0, 0, 0);
        if (r < m.rows && k < m.K && k < k0 + tile) x[i] = *(const float4*)(m.x + r * m.ldx + k);
      }
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        const int in_tile = first + i * THREADS * 4, k = k0 + in_tile;
        if (in_tile >= tile) break;
        if (m.gain && r < m.rows && k < m.K) {
          float* slot = &squares[r][k / 4 % SLOTS];
          float sum = k < 4 * SLOTS ? 0.0f : *slot;
          sum = fmaf(x[i].x, x[i].x, sum);
          sum = fmaf(x[i].y, x[i].y, sum);
          sum = fmaf(x[i].z, x[i].z, sum);
          *slot = fmaf(x[i].w, x[i].w, sum);
          const float4 g = *(const float4*)(m.gain + k);
          x[i] = make_float4(x[i].x * g.x, x[i].y * g.y, x[i].z * g.z, x[i].w * g.w);
        }
        *(float4*)(xs + r * tile + place_of(in_tile)) = x[i];
      }
    }
  }
}

// The factor that normalises a row of x.
__device__ __forceinline__ float factor_of(const Mat& m, const float* squares, int lane) {
  float s = 0.0f;
  for (int i = lane; i < SLOTS && 4 * i < m.K; i += 32) s += squares[i];
  return m.gain ? 1.0f / sqrtf(warp_sum(s) / (float)m.K + m.eps) : 1.0f;
}

// What becomes of one product: element `at` of row r; a pair's second product lies ROWS further on.
template <int MODE>
__device__ __forceinline__ void finish(const Mat& m, const float* out, int at, int r, float factor) {
  float* y = m.y + r * m.ldy + at;
  const float a = out[0] * factor;
  if (MODE == PLAIN) *y = a;
  if (MODE == RESIDUAL) *y += a;
  if (MODE == PLAIN || MODE == RESIDUAL) return;
  const float b = out[ROWS] * factor, gate = 1.0f / (1.0f + expf(-a));
  if (MODE == GATED) {
    *y = gate * a * b;
    return;
  }
  float* s = m.memory + (i64)state_of(m.state, r, STREAM) * (m.N / 2) + at;
  const float next = fmaf(gate, *s, (1.0f - gate) * b);
  *s = next;
  *y = next;
}

template <int MODE>
__device__ __forceinline__ void matvec(const Mat& m) {
  const bool paired = MODE == GATED || MODE == RECURRENT;
  const int RESULTS = paired ? NR / 2 : NR;
  extern __shared__ float4 shared[];
  __shared__ float squares[ROWS][SLOTS], factors[WARPS][ROWS], out[WARPS][NR * ROWS];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int results = paired ? m.N / 2 : m.N, groups = (results + WARPS * RESULTS - 1) / (WARPS * RESULTS);
  const int longest = (m.K < TILE ? m.K + CHUNK - 1 : TILE) / CHUNK * CHUNK;
  float* xs = (float*)shared;                          // [ROWS][a tile], then the ring
  Stream<paired> w(m, xs + ROWS * longest);
  grid_release();
#pragma unroll
  for (int slot = 0; slot < DEPTH; slot++) w.fetch(slot);
  grid_wait();
  int slot = 0;
  for (int g = blockIdx.x; g < groups; g += gridDim.x) {
    const bool fresh = g == blockIdx.x;
    float acc[NR][ROWS];
#pragma unroll
    for (int n = 0; n < NR; n++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[n][r] = 0.0f;
    i64 at[NR];
    bool odd[NR];
    w.take(g, at);
#pragma unroll
    for (int n = 0; n < NR; n++) odd[n] = at[n] / 32 % 2;
    for (int k0 = 0; k0 < m.K; k0 += TILE) {
      const int left = m.K - k0 < TILE ? m.K - k0 : TILE, tile = (left + CHUNK - 1) / CHUNK * CHUNK;
      if (fresh || m.K > TILE) {
        if (!fresh || k0) __syncthreads();             // until no warp needs the tile before
        stage(m, xs, squares, k0, tile);
        __syncthreads();
      }
#pragma unroll 2
      for (int k = 0; k < tile; k += CHUNK) {
        copy_wait<DEPTH - 1>();
        use(w, slot, acc, xs, tile, k, odd);
        w.fetch(slot);
        slot = slot + 1 == DEPTH ? 0 : slot + 1;
      }
    }
#pragma unroll
    for (int n = 0; n < NR; n++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float s = warp_sum(acc[n][r]);
        if (lane == 0) out[warp][n * ROWS + r] = s;
      }
    if (fresh)                                         // every warp for itself, alike
      for (int r = 0; r < ROWS; r++) {
        const float factor = factor_of(m, squares[r], lane);
        if (lane == 0) factors[warp][r] = factor;
      }
    __syncwarp();
    // Rows of x in order: those of one stream follow each other through its memory.
    const int mine = result_of<paired>(g, lane), n = lane * (paired ? 2 : 1);
    if (lane < RESULTS && mine < results)
      for (int r = 0; r < m.rows; r++) finish<MODE>(m, &out[warp][n * ROWS + r], mine, r, factors[warp][r]);
    __syncwarp();
  }
  copy_wait<0>();
}

#define BOUNDS __launch_bounds__(THREADS, ROWS >= 8 ? 1 : 2)
extern "C" __global__ void BOUNDS matvec_plain(const Mat m) { matvec<PLAIN>(m); }
extern "C" __global__ void BOUNDS matvec_residual(const Mat m) { matvec<RESIDUAL>(m); }
extern "C" __global__ void BOUNDS matvec_gated(const Mat m) { matvec<GATED>(m); }
extern "C" __global__ void BOUNDS matvec_recurrent(const Mat m) { matvec<RECURRENT>(m); }
