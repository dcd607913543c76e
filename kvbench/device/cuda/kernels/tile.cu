// Products of a prefill tile on tensor cores: y[r] = W x[r] for up to 64 rows, W read once. Compile
// with -DWT=F16|Q8|Q4. Three kernels: tile_split prepares x, tile_multiply sums over slices of K,
// tile_finish or tile_recur adds the slices and does what the mode asks.
//
// The precision is float32's. Each row of x is scaled by a power of two and split into two halves,
// x = hi + lo; a weight is exact in half precision (f16, or the integer of a block type), and both
// products are added. Tensor cores do not round to nearest when they add, so their sums span 32
// values of K; those, times the block's scale, are added in ordinary float32 arithmetic.
//
// A row's bits depend on nothing but its own x and W: 32 values of K after the other within a
// slice, then the slices, which N and K alone decide.

#define TILE 64         // rows of x, padded with zeros
#define ROWS 128        // rows of W a block
#define DEPTH 64        // values of K a stage
#define STAGES 3        // stages in shared memory: one in use, the others under way
#define WARPS 8         // 4 by 32 rows of W, 2 by 32 rows of x
#define THREADS (32 * WARPS)
#define SPLIT_WARPS 16
#define BLOCKED (WT != F16)                            // one scale per 32 values
#define PIECES (WT == F16 ? 8 : WT == Q8 ? 4 : 2)      // of 16 bytes, a stage's share of a row of W
#define VALUES (DEPTH / PIECES)                        // weights a piece
#define W_BYTES (ROWS * PIECES * 16)
#define X_PIECES (TILE * DEPTH / 4)                    // of 16 bytes: 4 values, hi and lo
#define STAGE_BYTES (W_BYTES + X_PIECES * 16)

struct Tile {
  const u8* w;          // as matvec.cu lays it out
  const u16* scale;     // likewise
  const float* x;       // [rows][ldx]
  const float* gain;    // [K], or null: x is RMS-normed first
  float* y;             // [rows][ldy]
  float* memory;        // RECURRENT: [streams][N/2]
  const int* state;     // RECURRENT: the rows' state
  uint4* split;         // x as fragments of mma_f16 (place_of)
  float* factors;       // [TILE] what the sums of a row are multiplied by
  float* sums;          // [slices][TILE][N]
  i64 ldx, ldy;
  int K, N, rows, slices, mode;
  float eps;
};

__device__ __forceinline__ int stages_of(const Tile& m) { return (m.K + DEPTH - 1) / DEPTH; }

// Where the values k .. k+3 of row r lie in `split`. A lane of mma_f16 holds 4 of a row's 16 values,
// and which ones is free, if it is the same for W: lane t of a row takes [8t, 8t + 8) of every 32
// values, 4 for each of two products, so that it finds its weights side by side.
__device__ __forceinline__ int place_of(int r, int k) {
  const int step = k / 32 * 2 + k % 8 / 4;
  return (step * (TILE / 8) + r / 8) * 32 + r % 8 * 4 + k % 32 / 8;
}

__device__ __forceinline__ float4 gained(const Tile& m, float4 x, int k) {
  if (!m.gain) return x;
  const float4 g = *(const float4*)(m.gain + k);
  return make_float4(x.x * g.x, x.y * g.y, x.z * g.z, x.w * g.w);
}

// Two values as their upper halves, and in `lo` what those leave.
__device__ __forceinline__ u32 split2(float a, float b, u32& lo) {
  const u32 hi = to_half_pair(a, b);
  lo = to_half_pair(a - lo_half(hi), b - hi_half(hi));
  return hi;
}

// A block per row.
extern "C" __global__ void __launch_bounds__(32 * SPLIT_WARPS) tile_split(const Tile m) {
  __shared__ float squares[SPLIT_WARPS], peaks[SPLIT_WARPS];
  const int r = blockIdx.x, lane = threadIdx.x % 32;
  const float* x = m.x + r * m.ldx;
  const int filled = r < m.rows ? m.K : 0;
  grid_release();
  grid_wait();
  float sum = 0.0f, peak = 0.0f;
#pragma unroll 4
  for (int k = threadIdx.x * 4; k < filled; k += 128 * SPLIT_WARPS) {
    const float4 v = *(const float4*)(x + k), p = gained(m, v, k);
    sum = fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, sum))));
    peak = fmaxf(peak, fmaxf(fmaxf(fabsf(p.x), fabsf(p.y)), fmaxf(fabsf(p.z), fabsf(p.w))));
  }
  sum = warp_sum(sum), peak = warp_max(peak);
  if (lane == 0) squares[threadIdx.x / 32] = sum, peaks[threadIdx.x / 32] = peak;
  __syncthreads();
  sum = peak = 0.0f;
  for (int w = 0; w < SPLIT_WARPS; w++) sum += squares[w], peak = fmaxf(peak, peaks[w]);
  // The power of two that brings the peak to [2^14, 2^15), or as near as exact undoing allows.
  int up = 268 - (int)(__float_as_uint(peak) >> 23);
  if (up > 227) up = 227;
  const float scale = __uint_as_float((u32)up << 23), undo = __uint_as_float((u32)(254 - up) << 23);
  if (threadIdx.x == 0) m.factors[r] = m.gain ? undo / sqrtf(sum / (float)m.K + m.eps) : undo;
#pragma unroll 4
  for (int k = threadIdx.x * 4; k < stages_of(m) * DEPTH; k += 128 * SPLIT_WARPS) {
    float4 v = make_float4(0, 0, 0, 0);
    if (k < filled) v = gained(m, *(const float4*)(x + k), k);
    uint4 out;
    out.x = split2(v.x * scale, v.y * scale, out.z);
    out.y = split2(v.z * scale, v.w * scale, out.w);
    m.split[place_of(r, k)] = out;
  }
}

// Exclusive-or for the pieces of a row in shared memory: free of bank conflicts when 4 lanes read
// 32 values of a row, and 8 groups of them neighbouring rows.
__device__ __forceinline__ int swizzle(int row) {
  return WT == F16 ? row % 2 * 4 : WT == Q8 ? row / 2 % 2 * 2 : 0;
}

__device__ __forceinline__ void fetch_weights(const Tile& m, u8* to, int first, int stage) {
  const int row = threadIdx.x / PIECES, piece = threadIdx.x % PIECES;
  const int k = stage * DEPTH + piece * VALUES, left = k < m.K ? m.N - first - row : 0;
  const u8* from = m.w + ((i64)(first + row) * m.K + k) / VALUES * 16;
  to += (row * PIECES + (piece ^ swizzle(row))) * 16;
#pragma unroll
  for (int i = 0; i < ROWS; i += THREADS / PIECES)   // a multiple of 4 rows on: the same swizzle
    copy_async<16>(to + i * PIECES * 16, i < left ? from + i * (m.K / VALUES * 16) : m.w, i < left);
}

__device__ __forceinline__ void fetch_x(const Tile& m, u8* to, int stage) {
#pragma unroll
  for (int i = threadIdx.x; i < X_PIECES; i += THREADS)
    copy_async<16>(to + W_BYTES + i * 16, m.split + (i64)stage * X_PIECES + i, true);
}

// This thread's one of the scales of a stage: row threadIdx.x / 2, block threadIdx.x % 2.
__device__ __forceinline__ u16 fetch_scale(const Tile& m, int first, int stage) {
  const int row = first + threadIdx.x / 2, k = stage * DEPTH + threadIdx.x % 2 * 32;
  return BLOCKED && row < m.N && k < m.K ? m.scale[((i64)row * m.K + k) / 32] : 0;
}

#if BLOCKED
// Four bytes as halves, less an offset: placed into the low mantissa of 2^10.
__device__ __forceinline__ void bytes_to_halves(u32 bytes, u32 minus, u32& a, u32& b) {
  a = half_pair_minus(__byte_perm(bytes, 0x64646464u, 0x4140u), minus);
  b = half_pair_minus(__byte_perm(bytes, 0x64646464u, 0x4342u), minus);
}
#endif

// Values [8t, 8t + 8) of a row's 32 from `span` on, as halves and without the block's scale.
__device__ __forceinline__ void load_weights(u32 (&w)[4], const u8* stage, int row, int span, int t) {
  const u8* at = stage + row * PIECES * 16;
#if WT == F16
  const uint4 v = *(const uint4*)(at + ((span * 4 + t) ^ swizzle(row)) * 16);
  w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
#elif WT == Q8
  const uint2 v = *(const uint2*)(at + ((span * 2 + t / 2) ^ swizzle(row)) * 16 + t % 2 * 8);
  bytes_to_halves(v.x ^ 0x80808080u, 0x64806480u, w[0], w[1]);
  bytes_to_halves(v.y ^ 0x80808080u, 0x64806480u, w[2], w[3]);
#else
  const uint2 v = *(const uint2*)(at + span * 16 + t % 2 * 8);
  const int shift = t / 2 * 4;
  bytes_to_halves((v.x >> shift) & 0x0f0f0f0fu, 0x64086408u, w[0], w[1]);
  bytes_to_halves((v.y >> shift) & 0x0f0f0f0fu, 0x64086408u, w[2], w[3]);
#endif
}

// acc += 32 rows of W times 32 rows of x, over one stage: [16 rows of W][8 rows of x][mma_f16's c].
__device__ __forceinline__ void use_stage(float (&acc)[2][4][4], const u8* stage, const u16 (*scales)[2], int warp, int lane) {
  const uint4* x = (const uint4*)(stage + W_BYTES) + warp % 2 * 4 * 32 + lane;
#pragma unroll 1   // both at once would need more than 128 registers
  for (int span = 0; span < 2; span++) {
    u32 a[2][2][4];   // [16 rows][product of the span]
    float d[2][2];
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int row = warp / 2 * 32 + i * 16 + half * 8 + lane / 4;
        u32 w[4];
        load_weights(w, stage, row, span, lane % 4);
        a[i][0][half] = w[0], a[i][0][half + 2] = w[1];
        a[i][1][half] = w[2], a[i][1][half + 2] = w[3];
        d[i][half] = BLOCKED ? half_bits(scales[row][span]) : 1.0f;
      }
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
      uint4 v[2][2];   // [8 rows of x][product]
      float part[2][2][4];
#pragma unroll
      for (int j = 0; j < 2; j++)
#pragma unroll
        for (int s = 0; s < 2; s++) v[j][s] = x[((span * 2 + s) * (TILE / 8) + pair * 2 + j) * 32];
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int c = 0; c < 4; c++) part[i][j][c] = 0.0f;
      // The small halves first. Four sums take turns: a product waits for the one before it.
#pragma unroll
      for (int hi = 0; hi < 2; hi++)
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
          for (int j = 0; j < 2; j++) {
            const u32 b[2] = {hi ? v[j][s].x : v[j][s].z, hi ? v[j][s].y : v[j][s].w};
#pragma unroll
            for (int i = 0; i < 2; i++) mma_f16(part[i][j], a[i][s], b);
          }
#pragma unroll
      for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int c = 0; c < 4; c++) {
            float& sum = acc[i][pair * 2 + j][c];
            sum = BLOCKED ? fmaf(d[i][c / 2], part[i][j][c], sum) : sum + part[i][j][c];
          }
    }
  }
}

// Block (rows of W, slice of K).
extern "C" __global__ void __launch_bounds__(THREADS, 2) tile_multiply(const Tile m) {
  extern __shared__ uint4 shared[];
  __shared__ u16 scales[STAGES][ROWS][2];
  u8* const ring = (u8*)shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * ROWS;
  const int begin = stages_of(m) * (int)blockIdx.y / m.slices;
  const int end = stages_of(m) * ((int)blockIdx.y + 1) / m.slices;
  grid_release();
  // Weights are constants: the first go out while x is still being split.
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    fetch_weights(m, ring + s * STAGE_BYTES, first, begin + s);
    if (BLOCKED) scales[s][threadIdx.x / 2][threadIdx.x % 2] = fetch_scale(m, first, begin + s);
  }
  u16 scale = fetch_scale(m, first, begin + STAGES - 1);
  grid_wait();
#pragma unroll
  for (int s = 0; s < STAGES - 1; s++) {
    if (begin + s < end) fetch_x(m, ring + s * STAGE_BYTES, begin + s);
    copy_commit();
  }
  float acc[2][4][4];
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) acc[i][j][c] = 0.0f;
  int slot = 0, behind = STAGES - 1;   // of the stage in use, and of the one before it
  for (int stage = begin; stage < end; stage++) {
    copy_wait<STAGES - 2>();
    __syncthreads();   // the stage is here, and nobody reads the one before it any more
    const int next = stage + STAGES - 1;
    if (next < end) {
      fetch_weights(m, ring + behind * STAGE_BYTES, first, next);
      fetch_x(m, ring + behind * STAGE_BYTES, next);
    }
    copy_commit();
    if (BLOCKED) {   // a scale stays in a register until a stage later: nothing waits for it
      scales[behind][threadIdx.x / 2][threadIdx.x % 2] = scale;
      scale = fetch_scale(m, first, next + 1);
    }
    use_stage(acc, ring + slot * STAGE_BYTES, scales[slot], warp, lane);
    behind = slot;
    slot = slot == STAGES - 1 ? 0 : slot + 1;
  }
  copy_wait<0>();
#pragma unroll
  for (int i = 0; i < 2; i++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) {
        const int n = first + warp / 2 * 32 + i * 16 + c / 2 * 8 + lane / 4;
        const int r = warp % 2 * 32 + j * 8 + lane % 4 * 2 + c % 2;
        if (n < m.N && r < m.rows) m.sums[((i64)blockIdx.y * TILE + r) * m.N + n] = acc[i][j][c];
      }
}

__device__ __forceinline__ float total(const Tile& m, int r, int n) {
  const float* part = m.sums + (i64)r * m.N + n;
  float sum = 0.0f;
#pragma unroll 8
  for (int s = 0; s < m.slices; s++) sum += part[(i64)s * TILE * m.N];
  return sum * m.factors[r];
}

// 32 columns of y a block, a warp per row. RECURRENT: one block has all rows of its columns, as
// those of one stream follow each other through its memory.
template <bool RECURRING>
__device__ __forceinline__ void finish_tile(const Tile& m) {
  __shared__ float gates[RECURRING ? TILE : 1][32], inputs[RECURRING ? TILE : 1][32];
  const bool paired = is_paired(m.mode);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int width = paired ? m.N / 2 : m.N, at = blockIdx.x * 32 + lane;
  grid_release();
  grid_wait();
  for (int r = blockIdx.y * WARPS + warp; r < m.rows && at < width; r += gridDim.y * WARPS) {
    const float a = total(m, r, at), b = paired ? total(m, r, at + width) : 0.0f;
    finish(m.mode, m.y + r * m.ldy + at, a, b);
    if (RECURRING) gates[r][lane] = sigmoid(a), inputs[r][lane] = (1.0f - sigmoid(a)) * b;
  }
  if (!RECURRING) return;
  __syncthreads();
  if (warp != 0 || at >= width) return;
  int stream = -1;
  float held = 0.0f;
  for (int r = 0; r < m.rows; r++) {
    const int now = state_of(m.state, r, STREAM);
    float* s = m.memory + (i64)now * width + at;
    if (now != stream) held = *s, stream = now;
    held = fmaf(gates[r][lane], held, inputs[r][lane]);
    *s = held;
    m.y[r * m.ldy + at] = held;
  }
}

extern "C" __global__ void __launch_bounds__(THREADS) tile_finish(const Tile m) { finish_tile<false>(m); }
extern "C" __global__ void __launch_bounds__(THREADS) tile_recur(const Tile m) { finish_tile<true>(m); }
