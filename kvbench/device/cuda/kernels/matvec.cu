// y[r] = W x[r] for up to ROWS rows, W read once. Compile with -DWT=F16|Q8|Q4|F32 -DROWS=1..16,
// -DWARPS of a block, -DNR: rows of W per warp, -DDEPTH: pieces of each row that are under way,
// -DEARLY: those ordered before x is there, -DPIECE: chunks of a piece, -DTILE: values of each x in
// shared memory.
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
#define STEP (PIECE * CHUNK)              // values of a row of W that are ordered at once
#define HELD (TILE / STEP * STEP)         // values of each x that are worked on at once
#define BLOCKED (WT == Q8 || WT == Q4)   // one scale per 32 values
#define THREADS (WARPS * 32)
#define SLOTS 512                        // partial sums of squares, whatever the number of threads

struct Mat {
  const u8* w;          // [N][K] of f16, f32, int8, or nibbles (16 bytes: values 0-15 low, 16-31 high)
  const u16* scale;     // [N][K/32] f16 (Q8, Q4)
  const float* x;       // [rows][ldx]
  const float* gain;    // [K], or null: x is RMS-normed first
  float* y;             // [rows][ldy]
  float* memory;        // RECURRENT: [streams][N/2]
  const int* state;     // RECURRENT: the rows' state
  i64 ldx, ldy;
  int K, N, rows, mode;
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

__device__ __forceinline__ i64 bytes_of(i64 values) {
  return WT == F16 ? 2 * values : WT == Q8 ? values : WT == Q4 ? values / 2 : 4 * values;
}

__device__ __forceinline__ int results_of(const Mat& m) { return is_paired(m.mode) ? m.N / 2 : m.N; }

// Results of a warp in a round; two rows of W make one of a paired mode.
__device__ __forceinline__ int results_at_once(const Mat& m) { return is_paired(m.mode) ? NR / 2 : NR; }

// The n-th result of this warp in a round: neighbours go to different blocks, so that the last round,
// which has not enough for all, still has a share for every multiprocessor.
__device__ __forceinline__ int result_of(const Mat& m, int round, int n) {
  return ((round * WARPS + threadIdx.x / 32) * gridDim.x + blockIdx.x) * results_at_once(m) + n;
}

// The first value of each row of W that this warp takes in a round, or -1 past the last row.
__device__ __forceinline__ void rows_of(const Mat& m, int round, i64 (&at)[NR]) {
  const int results = results_of(m), paired = is_paired(m.mode);
#pragma unroll
  for (int n = 0; n < NR; n++) {
    const int i = result_of(m, round, paired ? n / 2 : n);
    at[n] = i < results ? (i64)(i + (paired ? n % 2 * results : 0)) * m.K : -1;
  }
}

// A warp's rows of W, read ahead through a ring in shared memory of its own: no barrier of the block
// is needed, and the next rows are under way while these are summed. W is constant: EARLY pieces are
// ordered while the kernel before is still making x, the others right behind x, which would have to
// wait for them: they keep memory busy until the first sums are made.
struct Stream {
  const Mat& m;
  uint4* ring;            // [DEPTH][NR][PIECE][32] of this warp
  u32* scales;            // likewise: two scales, of which one is this lane's
  u64* landed;            // [DEPTH]
  const int lane;
  int round, k, slot, phase;   // what is ordered next; where the oldest piece lies
  i64 at[NR];

  __device__ __forceinline__ Stream(const Mat& m, void* shared, u64* landed)
      : m(m), ring((uint4*)shared + threadIdx.x / 32 * DEPTH * NR * PIECE * 32),
        scales((u32*)((uint4*)shared + WARPS * DEPTH * NR * PIECE * 32) + threadIdx.x / 32 * DEPTH * NR * PIECE * 32),
        landed(landed), lane(threadIdx.x % 32), round(0), k(0), slot(0), phase(0) {
    rows_of(m, round, at);
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      for (int i = 0; i < DEPTH; i++) barrier_init(landed + i);
      barriers_are_ready();
    }
    __syncwarp();
#endif
  }
  // Orders the next piece of every row into `slot`.
  __device__ __forceinline__ void fetch(int slot) {
    uint4* to = ring + slot * NR * PIECE * 32;
#if __CUDA_ARCH__ >= 900
    if (lane == 0) {
      const u32 bytes = bytes_of(m.K - k < STEP ? m.K - k : STEP);
      u32 rows = 0;
#pragma unroll
      for (int n = 0; n < NR; n++) rows += at[n] >= 0;
      barrier_expect(landed + slot, rows * bytes);
#pragma unroll
      for (int n = 0; n < NR; n++)
        if (at[n] >= 0) copy_bulk(to + n * PIECE * 32, m.w + bytes_of(at[n] + k), bytes, landed + slot);
    }
#endif
#if __CUDA_ARCH__ < 900 || BLOCKED
#pragma unroll
    for (int i = 0; i < PIECE * NR; i++) {
      const int n = i / PIECE, mine = k + i % PIECE * CHUNK + lane * VPL;
      const bool in = at[n] >= 0 && mine < m.K;
      const i64 value = in ? at[n] + mine : 0;
#if __CUDA_ARCH__ < 900
      copy_async<16>(to + i * 32 + lane, m.w + bytes_of(value), in);
#endif
#if BLOCKED
      copy_async<4>(scales + (slot * NR * PIECE + i) * 32 + lane, m.scale + value / 64 * 2, in);
#endif
    }
    copy_commit();
#endif
    k += STEP;
    if (k >= m.K) k = 0, rows_of(m, ++round, at);
  }
  __device__ __forceinline__ void fill(int from, int to) {
#pragma unroll 1
    for (int i = from; i < to; i++) fetch(i);
  }
  // Until the oldest piece is there.
  __device__ __forceinline__ void wait() {
#if __CUDA_ARCH__ >= 900
    barrier_wait(landed + slot, phase);
#endif
#if __CUDA_ARCH__ < 900 || BLOCKED
    copy_wait<DEPTH - 1>();
#endif
  }
  // The oldest piece is used: its place takes the next.
  __device__ __forceinline__ void turn() {
    __syncwarp();
    fetch(slot);
    if (++slot == DEPTH) slot = 0, phase ^= 1;
  }
};

// acc += chunk c of the oldest piece times x[*][at, at + CHUNK) of the tile; the piece has `left`
// values. odd: which of a pair of scales is meant.
template <bool FULL>
__device__ __forceinline__ void use(const Stream& w, int c, int left, float (&acc)[NR][ROWS], const float* xs, int tile, int at, const bool (&odd)[NR]) {
  const int lane = w.lane;
  uint4 v[NR];
#pragma unroll
  for (int n = 0; n < NR; n++) {
    v[n] = w.ring[((w.slot * NR + n) * PIECE + c) * 32 + lane];
    if (!FULL && c * CHUNK + lane * VPL >= left) v[n] = make_uint4(0, 0, 0, 0);
  }
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
    const u32 pair = w.scales[((w.slot * NR + n) * PIECE + c) * 32 + lane];
    const float d = odd[n] ? hi_half(pair) : lo_half(pair);
#pragma unroll
    for (int r = 0; r < ROWS; r++) acc[n][r] = fmaf(d, part[n][r], acc[n][r]);
  }
#endif
}

// A thread's share of a tile: LOADS vectors of x or of the gain, THREADS apart, that go out together:
// all blocks do this at once, and a trip to memory is longer than the rest.
#define LOADS (ROWS < 4 ? 8 : 4)
struct Share {
  float4 v[LOADS];
};
__device__ __forceinline__ void load(Share& share, const float* from, int k, int end) {
#pragma unroll
  for (int i = 0; i < LOADS; i++) {
    share.v[i] = make_float4(0, 0, 0, 0);
    if (k + i * THREADS * 4 < end) share.v[i] = *(const float4*)(from + k + i * THREADS * 4);
  }
}

// Brings x[*][k0, k0 + tile) into shared memory, zeros past K and past the last row, and adds the
// squares: slot s owns the values 4s mod 4 SLOTS, in ascending order, whatever the tile. gain, first:
// this thread's first share of the gain, which is constant and was fetched before x was there (few
// rows only), and of x's row 0 (if EARLY < DEPTH).
__device__ __forceinline__ void stage(const Mat& m, const Share& gain, const Share& first, float* xs, float (*squares)[SLOTS], int k0, int tile) {
  const int end = m.K - k0 < tile ? m.K : k0 + tile;
  for (int begin = threadIdx.x * 4; begin < tile; begin += LOADS * THREADS * 4) {
    const bool is_first = k0 + begin == threadIdx.x * 4;
    Share g = gain;
    if (m.gain && (ROWS >= 4 || !is_first)) load(g, m.gain, k0 + begin, end);
    for (int r = 0; r < ROWS; r++) {
      Share x = first;
      if (EARLY == DEPTH || r || !is_first) load(x, m.x + r * m.ldx, k0 + begin, r < m.rows ? end : 0);
#pragma unroll
      for (int i = 0; i < LOADS; i++) {
        const int at = begin + i * THREADS * 4, k = k0 + at;
        float4 v = x.v[i];
        if (at < tile) {
          if (m.gain && r < m.rows && k < m.K) {
            float* slot = &squares[r][k / 4 % SLOTS];
            float sum = k < 4 * SLOTS ? 0.0f : *slot;
            sum = fmaf(v.x, v.x, sum);
            sum = fmaf(v.y, v.y, sum);
            sum = fmaf(v.z, v.z, sum);
            *slot = fmaf(v.w, v.w, sum);
            v = make_float4(v.x * g.v[i].x, v.y * g.v[i].y, v.z * g.v[i].z, v.w * g.v[i].w);
          }
          *(float4*)(xs + r * tile + place_of(at)) = v;
        }
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

extern "C" __global__ void __launch_bounds__(THREADS, 1) matvec(const Mat m) {
  extern __shared__ __align__(128) float4 shared[];    // bulk copies to elsewhere are up to a third slower
  __shared__ float squares[ROWS][SLOTS], factors[WARPS][ROWS], out[WARPS][NR * ROWS];
  __shared__ u64 landed[WARPS][DEPTH];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int share = WARPS * results_at_once(m) * gridDim.x;
  const int longest = (m.K < HELD ? m.K + STEP - 1 : HELD) / STEP * STEP;
  float* xs = (float*)shared;                          // [ROWS][a tile], then the ring
  Stream w(m, xs + ROWS * longest, landed[warp]);
  grid_release();
  w.fill(0, EARLY);
  Share gain, first;
  if (m.gain && ROWS < 4) load(gain, m.gain, threadIdx.x * 4, m.K);   // many rows need the registers
  grid_wait();
  if (EARLY < DEPTH) {
    load(first, m.x, threadIdx.x * 4, m.K < HELD ? m.K : HELD);
    w.fill(EARLY, DEPTH);
  }
  for (int round = 0; round * share < results_of(m); round++) {
    float acc[NR][ROWS];
#pragma unroll
    for (int n = 0; n < NR; n++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[n][r] = 0.0f;
    i64 at[NR];
    bool odd[NR];
    rows_of(m, round, at);
#pragma unroll
    for (int n = 0; n < NR; n++) odd[n] = (at[n] + lane * VPL) / 32 % 2;
    for (int k0 = 0; k0 < m.K; k0 += HELD) {
      const int left = m.K - k0 < HELD ? m.K - k0 : HELD, tile = (left + STEP - 1) / STEP * STEP;
      if (round == 0 || m.K > HELD) {
        if (round || k0) __syncthreads();              // until no warp needs the tile before
        stage(m, gain, first, xs, squares, k0, tile);
        __syncthreads();
      }
      for (int k = 0; k < tile; k += STEP) {
        w.wait();
        if (left - k >= STEP) {
#pragma unroll
          for (int c = 0; c < PIECE; c++) use<true>(w, c, STEP, acc, xs, tile, k + c * CHUNK, odd);
        } else {
#pragma unroll 1
          for (int c = 0; c < PIECE && k + c * CHUNK < left; c++) use<false>(w, c, left - k, acc, xs, tile, k + c * CHUNK, odd);
        }
        w.turn();
      }
    }
#pragma unroll
    for (int n = 0; n < NR; n++)
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        const float s = warp_sum(acc[n][r]);
        if (lane == 0) out[warp][n * ROWS + r] = s;
      }
    if (round == 0)                                    // every warp for itself, alike
      for (int r = 0; r < ROWS; r++) {
        const float factor = factor_of(m, squares[r], lane);
        if (lane == 0) factors[warp][r] = factor;
      }
    __syncwarp();
    // Rows of x in order: those of one stream follow each other through its memory.
    const int i = result_of(m, round, lane), n = lane * (NR / results_at_once(m));
    if (lane < results_at_once(m) && i < results_of(m))
      for (int r = 0; r < m.rows; r++) {
        const float* sums = &out[warp][n * ROWS + r];
        const float factor = factors[warp][r], a = sums[0] * factor, b = is_paired(m.mode) ? sums[ROWS] * factor : 0.0f;
        float* y = m.y + r * m.ldy + i;
        finish(m.mode, y, a, b);
        if (m.mode != RECURRENT) continue;
        float* held = m.memory + (i64)state_of(m.state, r, STREAM) * (m.N / 2) + i;
        const float gate = sigmoid(a);
        *y = *held = fmaf(gate, *held, (1.0f - gate) * b);
      }
    __syncwarp();
  }
}
