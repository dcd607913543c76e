// y[r] = W x[r] for up to ROWS rows, W read once. Compile with -DWT=F16|Q8|Q4|F32 -DROWS=1..16.
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
#ifndef R1_WARPS
#define R1_WARPS 8
#endif
#ifndef R1_NR
#define R1_NR 2
#endif
#ifndef R1_LOADS
#define R1_LOADS 8
#endif
#ifndef R1_MINB
#define R1_MINB 3
#endif
#define WARPS (ROWS < 4 ? R1_WARPS : 8)
#define THREADS (WARPS * 32)
#define TILE (ROWS < 4 ? 32768 / ROWS : 16384 / ROWS)    // values of each x in shared memory
#define SLOTS 512                        // partial sums of squares, whatever the number of threads

// Rows of W per warp, and chunks in flight per row of W: 8 loads of 16 bytes per lane.
template <bool PAIRED>
struct Shape {
  static const int NR = ROWS < 4 ? (R1_NR == 1 && (PAIRED || WT == Q4) ? 2 : R1_NR) : BLOCKED && ROWS > 8 ? 2 : 4;
  static const int UNROLL = ROWS < 4 ? R1_LOADS / NR : WT == Q4 ? 1 : 2;
};

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

template <int NR, int UNROLL>
struct Batch {
  uint4 v[UNROLL][NR];
#if BLOCKED
  u16 d[UNROLL][NR];
#endif
};

template <int NR, int UNROLL>
__device__ __forceinline__ void load_chunk(Batch<NR, UNROLL>& b, const Mat& m, const int (&row)[NR], int k, int u) {
#pragma unroll
  for (int n = 0; n < NR; n++) {
    const bool in = k < m.K && row[n] < m.N;
    b.v[u][n] = make_uint4(0, 0, 0, 0);
    const i64 at = (i64)row[n] * m.K + k;
#if WT == F16
    if (in) b.v[u][n] = load_stream(m.w + 2 * at);
#elif WT == Q8
    b.d[u][n] = 0;
    if (in) b.v[u][n] = load_stream(m.w + at), b.d[u][n] = m.scale[at / 32];
#elif WT == Q4
    b.d[u][n] = 0;
    if (in) b.v[u][n] = load_stream(m.w + at / 2), b.d[u][n] = m.scale[at / 32];
#else
    if (in) b.v[u][n] = load_stream(m.w + 4 * at);
#endif
  }
}

template <int NR, int UNROLL>
__device__ __forceinline__ void use_chunk(const Batch<NR, UNROLL>& b, float (&acc)[NR][ROWS], const float* xs, int tile, int at, int u, int lane) {
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
    float4 w[NR];
#pragma unroll
    for (int n = 0; n < NR; n++) w[n] = weight4(b.v[u][n], g);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      const float4 x = *(const float4*)(xs + r * tile + at + g * 128 + lane * 4);
#pragma unroll
      for (int n = 0; n < NR; n++) {
        part[n][r] = fmaf(w[n].x, x.x, part[n][r]);
        part[n][r] = fmaf(w[n].y, x.y, part[n][r]);
        part[n][r] = fmaf(w[n].z, x.z, part[n][r]);
        part[n][r] = fmaf(w[n].w, x.w, part[n][r]);
      }
    }
  }
#if BLOCKED
#pragma unroll
  for (int n = 0; n < NR; n++) {
    const float d = half_bits(b.d[u][n]);
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[n][r] = fmaf(d, part[n][r], acc[n][r]);
  }
#endif
}

// Brings x[*][k0, k0 + tile) into shared memory, zeros past K and past the last row, and adds the
// squares: slot s owns the values 4s mod 4 SLOTS, in ascending order, whatever the tile.
__device__ __forceinline__ void stage(const Mat& m, float* xs, float (*squares)[SLOTS], int k0, int tile) {
#pragma unroll 4
  for (int r = 0; r < ROWS; r++) {
#pragma unroll 4
    for (int k = threadIdx.x * 4; k < tile; k += THREADS * 4) {
      float4 x = make_float4(0, 0, 0, 0);
      if (r < m.rows && k0 + k < m.K) {
        x = *(const float4*)(m.x + r * m.ldx + k0 + k);
        if (m.gain) {
          float* slot = &squares[r][(k0 + k) / 4 % SLOTS];
          float sum = k0 + k < 4 * SLOTS ? 0.0f : *slot;
          sum = fmaf(x.x, x.x, sum);
          sum = fmaf(x.y, x.y, sum);
          sum = fmaf(x.z, x.z, sum);
          *slot = fmaf(x.w, x.w, sum);
          const float4 g = *(const float4*)(m.gain + k0 + k);
          x = make_float4(x.x * g.x, x.y * g.y, x.z * g.z, x.w * g.w);
        }
      }
      *(float4*)(xs + r * tile + place_of(k)) = x;
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
  const int NR = Shape<paired>::NR, UNROLL = Shape<paired>::UNROLL;
  extern __shared__ float4 shared[];
  __shared__ float squares[ROWS][SLOTS], factors[WARPS][ROWS], out[WARPS][NR * ROWS];
  float* xs = (float*)shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int per_group = WARPS * (paired ? NR / 2 : NR), limit = paired ? m.N / 2 : m.N;
  const int groups = (limit + per_group - 1) / per_group;

  // Group g of rows of W: this warp's share of it. Rows past the end become N.
  int row[NR];
  auto take = [&](int g) {
    const int first = g * per_group + warp * (per_group / WARPS);
#pragma unroll
    for (int n = 0; n < NR; n++) {
      const int i = first + (paired ? n / 2 : n);
      row[n] = i < limit ? i + (paired ? n % 2 * limit : 0) : m.N;
    }
  };

  Batch<NR, UNROLL> batch;
  take(blockIdx.x);
  grid_release();
  // Weights are constants: the first go out while the kernel before is still making x.
#pragma unroll
  for (int u = 0; u < UNROLL; u++) load_chunk(batch, m, row, u * CHUNK + lane * VPL, u);
  grid_wait();
  bool staged = false;
  for (int g = blockIdx.x; g < groups; g += gridDim.x) {
    float acc[NR][ROWS];
#pragma unroll
    for (int n = 0; n < NR; n++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[n][r] = 0.0f;
    int mine = m.N;   // the row of W whose results this lane will write
    if (lane < (paired ? NR / 2 : NR)) {
      const int i = g * per_group + warp * (per_group / WARPS) + lane;
      if (i < limit) mine = i;
    }
    for (int k0 = 0; k0 < m.K; k0 += TILE) {
      const int left = m.K - k0 < TILE ? m.K - k0 : TILE;
      const int tile = (left + CHUNK - 1) / CHUNK * CHUNK;
      if (!staged || (m.K > TILE && (k0 || g != blockIdx.x))) {
        if (staged) __syncthreads();
        stage(m, xs, squares, k0, tile);
        __syncthreads();
        staged = true;
      }
      for (int k = 0; k < tile; k += UNROLL * CHUNK) {
        int next = k0 + k + UNROLL * CHUNK;
        if (next >= m.K) next = 0, take(g + gridDim.x);
        // A chunk's registers are filled anew as soon as it is used: the loads never run dry.
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
          if (k + u * CHUNK < tile) use_chunk(batch, acc, xs, tile, k + u * CHUNK, u, lane);
          load_chunk(batch, m, row, next + u * CHUNK + lane * VPL, u);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < NR; n++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float s = warp_sum(acc[n][r]);
        if (lane == 0) out[warp][n * ROWS + r] = s;
      }
    if (g == blockIdx.x)   // every warp for itself, alike
      for (int r = 0; r < ROWS; r++) {
        const float factor = factor_of(m, squares[r], lane);
        if (lane == 0) factors[warp][r] = factor;
      }
    __syncwarp();
    // Rows of x in order: those of one stream follow each other through its memory.
    const int n = lane * (paired ? 2 : 1);
    if (mine < m.N)
      for (int r = 0; r < m.rows; r++) finish<MODE>(m, &out[warp][n * ROWS + r], mine, r, factors[warp][r]);
    __syncwarp();
  }
}

#define BOUNDS __launch_bounds__(THREADS, ROWS >= 8 ? 1 : ROWS >= 4 ? 2 : R1_MINB)
extern "C" __global__ void BOUNDS matvec_plain(const Mat m) { matvec<PLAIN>(m); }
extern "C" __global__ void BOUNDS matvec_residual(const Mat m) { matvec<RESIDUAL>(m); }
extern "C" __global__ void BOUNDS matvec_gated(const Mat m) { matvec<GATED>(m); }
extern "C" __global__ void BOUNDS matvec_recurrent(const Mat m) { matvec<RECURRENT>(m); }
