// Grouped-query attention over one window. Compile with -DKV=F16|Q8|Q4, -DHD=elements of a head
// (64, 128 and 256 go through tensor cores, others element by element), -DG=query heads per KV head,
// of which a block takes up to COLUMNS, and -DNEW=0|1: whether the row's own K and V are made here.
//
// The window is a slot, a device-resident cache or mapped host memory: row j of a sequence lies at
// base + lane * stream_bytes + cell(j) * pitch, cell(j) = j or an entry of an index list. A row of
// the batch attends to rows 0..position and to no byte beyond them: rows past the end are skipped
// by index, so what a rounded-up delivery left there cannot matter (H5). A row's result is made of
// partials over spans of whole chunks. How long a span is and in which order the partials are
// combined depend on the row's position alone.
//
// With NEW the last product of q, k and v is all that went before: heads are turned here, and the
// block that reaches a row's end encodes its new K and V, uses them, and puts them into the window
// and into `rows`. No other row of the batch may attend to them. Everything else of the window, and
// the state, are read before grid_wait(): they were complete when this token began (tokens.cu).

#define CHUNK 64
#define SPANS 64                              // most partials of a row
#define COLUMNS 8
#define GROUPS ((G + COLUMNS - 1) / COLUMNS)

struct Window {
  const u8* k;
  const u8* v;
  i64 stream_bytes, pitch;
  const int* state;       // of the first row of this launch
  const int* cells;       // [R][cell_stride] or null; stride 0: one list for all rows
  int cell_stride;
  int lane_column;        // which column of state says where a row's stream lies
  int n_kv;
  int pad_blocks;         // zero blocks after the last head's values (Q8, Q4)
  int max_spans;
  int fold;               // 1: a head's last block combines its spans, and `combine` does not run
  float scale;
  const float* q;         // [R][H][HD]; not read with NEW
  float* part;            // [R][H][max_spans][HD]
  float* part_ml;         // [R][H][max_spans][2]: maximum, sum
  u32* arrived;           // [R][blocks in y], all zero: blocks that have written their partials
  float* out;             // [R][out_stride], a head after the other
  i64 out_stride;
  // With NEW:
  const float* qkv;       // [R][(G + 2) n_kv HD]
  u8* rows;               // [R][2][row_pitch]
  const float* cosines;   // [positions][rope_dim / 2]
  const float* sines;
  i64 row_pitch;
  int rope_dim, interleaved;
};

// Rows of a span when a row of the batch attends to `count` rows.
__device__ __forceinline__ int span_rows(int count) {
  return (count + CHUNK * SPANS - 1) / (CHUNK * SPANS) * CHUNK;
}

__device__ __forceinline__ int spans_of(int count) {
  const int span = span_rows(count);
  return (count + span - 1) / span;
}

#if KV == F16
#define BLOCK 64
#define BLOCK_BYTES 128
#elif KV == Q8
#define BLOCK 32
#define BLOCK_BYTES 34
#else
#define BLOCK 32
#define BLOCK_BYTES 18
#endif
#define SEG (KV == F16 ? HD * 2 : HD / BLOCK * BLOCK_BYTES)   // bytes of one head in a row

// Where row j of batch row r lies, from the start of its stream (lane_of).
__device__ __forceinline__ i64 row_offset(const Window& a, int r, int j) {
  return (i64)(a.cells ? a.cells[(i64)r * a.cell_stride + j] : j) * a.pitch;
}
__device__ __forceinline__ i64 lane_of(const Window& a, int r) {
  return (i64)state_of(a.state, r, a.lane_column) * a.stream_bytes;
}

// Kernels read whole groups of blocks: the padding's scales take part with weight zero, so that
// padding which was never cleared shows as NaN.
__device__ __forceinline__ float padding(const Window& a, const u8* row, int head) {
  float z = 0.0f;
#if KV != F16
  if (head == a.n_kv - 1)
    for (int b = 0; b < a.pad_blocks; b++)
      z = fmaf(half_bits(*(const u16*)(row + (a.n_kv * HD / BLOCK + b) * BLOCK_BYTES)), 0.0f, z);
#endif
  return z;
}

// What a block works on: rows row0..end - 1 of the window, query heads first..first + heads - 1.
struct Work {
  int row0, end, kv_head, first, heads, r;
  int own;                // with NEW the batch row's own row, else one that no window has
  const u8* k;            // of the sequence
  const u8* v;
};
__device__ __forceinline__ Work work_of(const Window& a) {
  Work w;
  w.r = blockIdx.z;
  const int count = state_of(a.state, w.r, POSITION) + 1, span = span_rows(count);
  const int group = blockIdx.y % GROUPS;
  w.row0 = blockIdx.x * span;
  w.end = count - w.row0 < span ? count : w.row0 + span;
  w.own = NEW ? count - 1 : -1;
  w.kv_head = blockIdx.y / GROUPS;
  w.first = w.kv_head * G + group * COLUMNS;
  w.heads = G - group * COLUMNS < COLUMNS ? G - group * COLUMNS : COLUMNS;
  w.k = a.k + lane_of(a, w.r);
  w.v = a.v + lane_of(a, w.r);
  return w;
}
// The place of a query head's partial, in units of one.
__device__ __forceinline__ i64 partial(const Window& a, const Work& w, int head) {
  return ((i64)w.r * a.n_kv * G + w.first + head) * a.max_spans + blockIdx.x;
}

// A head's result is the sum of its partials, weighted to their common maximum: those of spans y,
// y + WAYS, ... are added up, then these sums in order of y.
#define WAYS 8
// Of `spans` spans from `base` on: their weights (in lane l those of l and l + 32) and weighted sum.
__device__ __forceinline__ float weigh(float (&weight)[2], const float* part_ml, i64 base, int spans) {
  float ml[2][2];
#pragma unroll
  for (int k = 0; k < 2; k++) {
    const int c = threadIdx.x % 32 + k * 32;
    load_written(ml[k], part_ml + (base + (c < spans ? c : 0)) * 2);
    if (c >= spans) ml[k][0] = -INFINITY, ml[k][1] = 0.0f;
  }
  const float top = warp_max(fmaxf(ml[0][0], ml[1][0]));
#pragma unroll
  for (int k = 0; k < 2; k++) weight[k] = expf(ml[k][0] - top);
  return warp_sum(fmaf(weight[0], ml[0][1], weight[1] * ml[1][1]));
}
// sum += span c's x, if there is such a span.
template <int V>
__device__ __forceinline__ void add_span(float (&sum)[V], const float (&x)[V], const float (&weight)[2], int c, int spans) {
  const float by = __shfl_sync(0xffffffffu, weight[c / 32], c % 32);
#pragma unroll
  for (int e = 0; e < V; e++) sum[e] = c < spans ? fmaf(by, x[e], sum[e]) : sum[e];
}

// The last block of a row's group of heads to get here combines their partials, few as they are.
#define FOLDED 16
#define EACH (HD >= 128 ? 4 : HD >= 64 ? 2 : 1)   // elements per lane
#define UNIT (32 * EACH)
__device__ __forceinline__ void fold(const Window& a, const Work& w) {
  __shared__ bool last;
  const int spans = spans_of(state_of(a.state, w.r, POSITION) + 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(a.arrived + w.r * gridDim.y + blockIdx.y, spans - 1) == spans - 1;   // then zero
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  const int units = (HD + UNIT - 1) / UNIT;
  for (int u = threadIdx.x / 32; u < w.heads * units; u += blockDim.x / 32) {
    const int head = w.first + u / units, i = u % units * UNIT + threadIdx.x % 32 * EACH;
    const i64 base = ((i64)w.r * a.n_kv * G + head) * a.max_spans;
    float x[FOLDED][EACH], weight[2], way[EACH], o[EACH];
#pragma unroll
    for (int c = 0; c < FOLDED; c++)
      load_written(x[c], a.part + (base + (c < spans ? c : 0)) * HD + (i < HD ? i : 0));
    const float total = weigh(weight, a.part_ml, base, spans);
#pragma unroll
    for (int y = 0; y < WAYS; y++) {
#pragma unroll
      for (int e = 0; e < EACH; e++) way[e] = 0.0f;
#pragma unroll
      for (int c = y; c < FOLDED; c += WAYS) add_span(way, x[c], weight, c, spans);
#pragma unroll
      for (int e = 0; e < EACH; e++) o[e] = y ? o[e] + way[e] : way[e];
    }
#pragma unroll
    for (int e = 0; e < EACH; e++)
      if (i < HD) a.out[w.r * a.out_stride + head * HD + i + e] = o[e] / total;
  }
}

#if HD == 64 || HD == 128 || HD == 256
// Rows of K times q, then columns of V times the softmax weights p: both as matrices of 16 x 16
// halves (K or V) by 16 x 8 (the query heads). K's and V's numbers are halves exactly, without
// their blocks' scales. q and p are float32: each is the sum of two halves, hi + lo, after a
// power of two per head brings the largest into the halves' range.
#define ALIGN (SEG % 16 == 0 ? 16 : SEG % 8 == 0 ? 8 : 4)
#define SROW ((SEG + 15) / 32 * 32 + 16)      // row stride in shared memory, free of bank conflicts
#define TILE (2 * CHUNK * SROW > 49152 ? CHUNK / 2 : CHUNK)   // rows held at a time
#define WARPS (HD == 256 ? 8 : 4)
#define THREADS (32 * WARPS)
#define PARTS (WARPS * 16 / TILE)             // warps that share 16 rows of K
#define PART (HD / PARTS)                     // and the values of a row that each multiplies
#define TILES (HD / 16 / WARPS)               // warp's tiles of 16 values of V
#define STEPS (TILE / 16)
#define LANE_G (threadIdx.x % 32 / 4)         // a lane's row or column in mma_f16's operands
#define LANE_T (threadIdx.x % 4)

// Powers of two: `up` brings values of up to `most` below 2^(to + 1), `down` undoes it.
__device__ __forceinline__ void powers(float most, u32 to, float& up, float& down) {
  u32 e = __float_as_uint(most) >> 23;
  e = e < 32 ? 32 : e;
  up = __uint_as_float((254 + to - e) << 23);
  down = __uint_as_float((e - to) << 23);
}
__device__ __forceinline__ void split(float a, float b, u32& hi, u32& lo) {
  hi = to_half_pair(a, b);
  lo = to_half_pair(a - lo_half(hi), b - hi_half(hi));
}
// Over the four lanes that share lane / 4.
__device__ __forceinline__ float quad_max(float v) {
  v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
  return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
// From lanes whose lane / 4 is a head to those whose results are of heads 2t and 2t + 1.
__device__ __forceinline__ void to_columns(float v, float (&out)[2]) {
  out[0] = __shfl_sync(0xffffffffu, v, LANE_T * 8);
  out[1] = __shfl_sync(0xffffffffu, v, LANE_T * 8 + 4);
}

#if KV == F16
// Element of the four that lane t multiplies in a step of 16, by twos; element of V's tile.
__device__ __forceinline__ int key_element(int step, int i) { return step * 16 + LANE_T * 2 + i / 2 * 8; }
__device__ __forceinline__ int value_element(int tile, int i) { return tile * 16 + LANE_G + i * 8; }

__device__ __forceinline__ void keys(u32 (&m)[4], const u8* k, int step) {
  const int lane = threadIdx.x % 32;
  ldmatrix4(m, k + lane % 16 * SROW + step * 32 + lane / 16 * 16, false);
}
__device__ __forceinline__ void values(u32 (&m)[TILES][4], const u8* v, int tile) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < TILES; i++)
    ldmatrix4(m[i], v + (lane / 16 * 8 + lane % 8) * SROW + (tile + i) * 32 + lane / 8 % 2 * 16, true);
}
__device__ __forceinline__ float scale_of(const u8*, int) { return 1.0f; }

#else
// A block's values in eight fours, each the bytes (or low, or high nibbles) of a word. Two blocks
// make 2 WORDS + 1 words: scale, two bytes | WORDS - 1 words | two bytes, scale | WORDS words. Four
// WORDS - 1 of the first block is the two bytes at its end and the two at its start.
#define WORDS (BLOCK_BYTES / 4)
__device__ __forceinline__ const u32* block_words(const u8* row, int block) {
  return (const u32*)row + block / 2 * (2 * WORDS + 1) + block % 2 * WORDS;
}
__device__ __forceinline__ float scale_of(const u8* row, int block) {
  const u32 w = *block_words(row, block);
  return block % 2 ? hi_half(w) : lo_half(w);
}
__device__ __forceinline__ u32 four(const u8* row, int block, int i) {
  const u32* w = block_words(row, block);
  u32 x = w[1 + i % WORDS];
  if (block % 2 == 0 && i % WORDS == WORDS - 1) x = __byte_perm(x, *w, 0x7610);
  return KV == Q8 ? x ^ 0x80808080u : x >> i / WORDS * 4 & 0x0f0f0f0fu;
}
__device__ __forceinline__ int element_of(int block, int i, int byte) {
  const int first = block % 2 ? 0 : 2;
  return block * 32 + (first + i % WORDS * 4 + byte) % (4 * WORDS) + i / WORDS * 16;
}
// Two bytes as halves: placed into the low mantissa of 1024, then the offset is taken away.
#define LOW_BYTES 0x4140
#define HIGH_BYTES 0x4342
__device__ __forceinline__ u32 halves(u32 bytes, u32 which) {
  return half_pair_minus(__byte_perm(bytes, 0x64646464u, which), KV == Q8 ? 0x64806480u : 0x64086408u);
}

__device__ __forceinline__ int key_element(int step, int i) { return element_of(step / 2, step % 2 * 4 + LANE_T, i); }
__device__ __forceinline__ int value_element(int tile, int i) { return element_of(tile / 2, LANE_G, tile % 2 * 2 + i); }

__device__ __forceinline__ void keys(u32 (&m)[4], const u8* k, int step) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const u32 x = four(k + (LANE_G + i * 8) * SROW, step / 2, step % 2 * 4 + LANE_T);
    m[i] = halves(x, LOW_BYTES);
    m[i + 2] = halves(x, HIGH_BYTES);
  }
}
__device__ __forceinline__ void values(u32 (&m)[TILES][4], const u8* v, int tile) {
#pragma unroll
  for (int rows = 0; rows < 4; rows += 2) {
    const u8* row = v + (LANE_T * 2 + rows * 4) * SROW;
    const u32 a = four(row, tile / 2, LANE_G), b = four(row + SROW, tile / 2, LANE_G);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
      const u32 both = __byte_perm(a, b, (tile + i) % 2 ? 0x7362 : 0x5140);
      m[i][rows] = halves(both, LOW_BYTES);
      m[i][rows + 1] = halves(both, HIGH_BYTES);
    }
  }
}
#endif

// A warp's PART values of q for head lane / 4, as mma_f16 takes them.
struct Query {
  u32 hi[PART / 16][2], lo[PART / 16][2];
  float down[2];          // of this lane's columns
};
__device__ __forceinline__ void load_query(Query& out, const float* q, float scale, bool in) {
  float2 x[PART / 16][2];
  float most = 0.0f, up, down;
#pragma unroll
  for (int i = 0; i < PART / 8; i++) {
    float2& two = x[i / 2][i % 2];
    two = in ? *(const float2*)(q + key_element(i / 2, i % 2 * 2)) : make_float2(0.0f, 0.0f);
    two.x *= scale, two.y *= scale;
    most = fmaxf(most, fmaxf(fabsf(two.x), fabsf(two.y)));
  }
  powers(quad_max(most), 10, up, down);
  to_columns(down, out.down);
#pragma unroll
  for (int i = 0; i < PART / 8; i++) {
    const float2 two = x[i / 2][i % 2];
    split(two.x * up, two.y * up, out.hi[i / 2][i % 2], out.lo[i / 2][i % 2]);
  }
}

// 16 rows of K times q: rows g and g + 8, columns 2t and 2t + 1.
__device__ __forceinline__ void score(float (&s)[4], const u8* k, const Query& q) {
  s[0] = s[1] = s[2] = s[3] = 0.0f;
#pragma unroll
  for (int b = 0; b < PART / 32; b++) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int step = 2 * b; step < 2 * b + 2; step++) {
      u32 m[4];
      keys(m, k, step);
      mma_f16(sum, m, q.lo[step]);
      mma_f16(sum, m, q.hi[step]);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) s[i] = fmaf(scale_of(k + (LANE_G + i / 2 * 8) * SROW, b), sum[i], s[i]);
  }
#pragma unroll
  for (int i = 0; i < 4; i++) s[i] *= q.down[i % 2];
}

// A tile of K or V into shared memory, zeros past the end. LANES threads share a row.
#define PIECES (SEG / ALIGN)
#define LANES (PIECES <= 8 ? 8 : PIECES <= 16 ? 16 : 32)
#define COPIES (TILE * LANES / THREADS)
__device__ __forceinline__ void fetch(const Window& a, const Work& w, const u8* base, u8* to, int row) {
  const int piece = threadIdx.x % LANES, first = threadIdx.x / LANES;
  if (row < w.end && piece < PIECES) {
    int cell[COPIES];
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      const int j = row + first + i * (TILE / COPIES);
      cell[i] = j < w.end ? j : -1;
    }
    if (a.cells)
#pragma unroll
      for (int i = 0; i < COPIES; i++)
        if (cell[i] >= 0) cell[i] = a.cells[(i64)w.r * a.cell_stride + cell[i]];
    base += w.kv_head * SEG + piece * ALIGN;
    to += first * SROW + piece * ALIGN;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
      const bool in = cell[i] >= 0;
      const u64 at = (u64)(u32)(in ? cell[i] : 0) * (u32)a.pitch;
      copy_async<ALIGN>(to + i * (TILE / COPIES) * SROW, base + at, in);
    }
  }
  copy_commit();
}

#if NEW
// A thread has one element of a head, of AT_ONCE heads at a time. It turns the block's query heads
// into `q`, and into `kv` the new K, then V: both, or the one of which it has an element.
#define AT_ONCE (THREADS / HD)
#define Q_EACH (((G < COLUMNS ? G : COLUMNS) + AT_ONCE - 1) / AT_ONCE)
#define KV_EACH (2 / AT_ONCE)
__device__ __forceinline__ void turn_heads(const Window& a, const Work& w, const Turn& turn,
                                           float (*q)[HD + 8], float (&kv)[KV_EACH]) {
  const int d = threadIdx.x % HD, of = threadIdx.x / HD;
  const float* in = a.qkv + (i64)w.r * (G + 2) * a.n_kv * HD;
  float own[Q_EACH], other[Q_EACH];
#pragma unroll
  for (int i = 0; i < Q_EACH; i++) {
    const int head = of + i * AT_ONCE;
    const float* from = in + (i64)(w.first + (head < w.heads ? head : 0)) * HD;
    own[i] = from[d], other[i] = from[turn.other];
  }
#pragma unroll
  for (int i = 0; i < KV_EACH; i++) {
    const int which = of + i * AT_ONCE;
    const float* from = in + (i64)((G + which) * a.n_kv + w.kv_head) * HD;
    kv[i] = which ? from[d] : turned(turn, from[d], from[turn.other]);
  }
#pragma unroll
  for (int i = 0; i < Q_EACH; i++)
    if (of + i * AT_ONCE < w.heads) q[of + i * AT_ONCE][d] = turned(turn, own[i], other[i]);
}
// The new K (which = 0) or V over what was found in its place, in a tile that begins with row `row`.
__device__ __forceinline__ void insert(const Work& w, const float (&kv)[KV_EACH], int which, u8* to, int row) {
  if (w.own >= w.end || w.own >= row + TILE) return;
#pragma unroll
  for (int i = 0; i < KV_EACH; i++)
    if (threadIdx.x / HD + i * AT_ONCE == which) encode(to + (w.own - row) * SROW, threadIdx.x % HD, kv[i]);
  __syncthreads();
}
// And from there to where they are kept: into the window, and for who stores them in the host.
__device__ __forceinline__ void keep_rows(const Window& a, const Work& w, const u8* ks, const u8* vs, int row) {
  const i64 cell = (i64)state_of(a.state, w.r, CELL) * a.pitch + w.kv_head * SEG;
  u8* rows = a.rows + w.r * 2 * a.row_pitch + w.kv_head * SEG;
  for (int i = threadIdx.x; i < 2 * (SEG / 4); i += THREADS) {
    const int which = i / (SEG / 4), at = i % (SEG / 4) * 4;
    const u32 word = *(const u32*)((which ? vs : ks) + (w.own - row) * SROW + at);
    *(u32*)((u8*)(which ? w.v : w.k) + cell + at) = word;
    *(u32*)(rows + which * a.row_pitch + at) = word;
  }
}
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 512 / THREADS) attend(const Window a) {
  extern __shared__ uint4 shared[];
  __shared__ __align__(16) float s[PARTS][COLUMNS][TILE + 8];
  __shared__ __align__(16) float mask[TILE];   // added to a row's scores: nothing, or it is no row
  grid_release();
  if (!NEW) grid_wait();
  const Work w = work_of(a);
  const bool none = w.row0 >= w.end;
  if (!NEW && none) return;
  const int warp = threadIdx.x / 32, g = LANE_G, t = LANE_T;
  u8* ks = (u8*)shared;
  u8* vs = ks + TILE * SROW;
  fetch(a, w, w.k, ks, w.row0);
  fetch(a, w, w.v, vs, w.row0);
  const int rows16 = warp % STEPS, part = warp / STEPS, tile = warp * TILES;
  Query q;
#if NEW
  __shared__ __align__(16) float heads[COLUMNS][HD + 8];
  float kv[KV_EACH];
  const Turn turn = turn_of(a.cosines, a.sines, w.own, threadIdx.x % HD, a.rope_dim, a.interleaved);
  grid_wait();
  if (none) return;
  turn_heads(a, w, turn, heads, kv);
  __syncthreads();
  load_query(q, &heads[g][part * PART], a.scale, g < w.heads);
#else
  load_query(q, a.q + ((i64)w.r * a.n_kv * G + w.first + g) * HD + part * PART, a.scale, g < w.heads);
#endif

  // Of head g: the maximum and the sum of weights so far. Every warp has them.
  float top = -INFINITY, total = 0.0f;
  float o[TILES][4];
#pragma unroll
  for (int i = 0; i < TILES * 4; i++) o[i / 4][i % 4] = 0.0f;
  for (int row = w.row0; row < w.end; row += TILE) {
    if (threadIdx.x < TILE) {
      const int j = row + threadIdx.x;
      float z = -INFINITY;
      if (j < w.end) {
        const i64 at = row_offset(a, w.r, j);
        z = padding(a, w.k + at, w.kv_head) + padding(a, w.v + at, w.kv_head);
      }
      mask[threadIdx.x] = z;
    }
    copy_wait<1>();
    __syncthreads();
#if NEW
    insert(w, kv, 0, ks, row);
#endif
    float c[4];
    score(c, ks + rows16 * 16 * SROW + part * (SEG / PARTS), q);
#pragma unroll
    for (int i = 0; i < 4; i++) s[part][t * 2 + i % 2][rows16 * 16 + g + i / 2 * 8] = c[i];
    __syncthreads();
    fetch(a, w, w.k, ks, row + TILE);

    float p[STEPS][4], before = top;
#pragma unroll
    for (int i = 0; i < STEPS * 2; i++) {
      const int j = i / 2 * 16 + i % 2 * 8 + t * 2;
      float2 x = *(const float2*)&mask[j];
#pragma unroll
      for (int k = 0; k < PARTS; k++) {
        const float2 y = *(const float2*)&s[k][g][j];
        x.x += y.x, x.y += y.y;
      }
      p[i / 2][i % 2 * 2] = x.x, p[i / 2][i % 2 * 2 + 1] = x.y;
      top = fmaxf(top, fmaxf(x.x, x.y));
    }
    top = quad_max(top);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) {
      p[i / 4][i % 4] = weight_exp(p[i / 4][i % 4] - top);
      sum += p[i / 4][i % 4];
    }
    const float keep = weight_exp(before - top);
    total = fmaf(total, keep, quad_sum(sum));

    copy_wait<1>();
    __syncthreads();
#if NEW
    insert(w, kv, 1, vs, row);
#endif
    float most = 0.0f, up, down;
#pragma unroll
    for (int i = 0; i < STEPS * 4; i++) {
      p[i / 4][i % 4] *= scale_of(vs + (i / 4 * 16 + t * 2 + i % 2 + i / 2 % 2 * 8) * SROW, tile / 2);
      most = fmaxf(most, fabsf(p[i / 4][i % 4]));
    }
    powers(quad_max(most), 13, up, down);
    float sums[TILES][4];
#pragma unroll
    for (int i = 0; i < TILES * 4; i++) sums[i / 4][i % 4] = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      u32 hi[2], lo[2], m[TILES][4];
      split(p[step][0] * up, p[step][1] * up, hi[0], lo[0]);
      split(p[step][2] * up, p[step][3] * up, hi[1], lo[1]);
      values(m, vs + step * 16 * SROW, tile);
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        mma_f16(sums[i], m[i], lo);
        mma_f16(sums[i], m[i], hi);
      }
    }
    float keeps[2], downs[2];
    to_columns(keep, keeps);
    to_columns(down, downs);
#pragma unroll
    for (int i = 0; i < TILES * 4; i++)
      o[i / 4][i % 4] = fmaf(o[i / 4][i % 4], keeps[i % 2], sums[i / 4][i % 4] * downs[i % 2]);
    __syncthreads();
    fetch(a, w, w.v, vs, row + TILE);
#if NEW
    if (w.own < row + TILE && w.own < w.end && blockIdx.y % GROUPS == 0) keep_rows(a, w, ks, vs, row);
#endif
  }
#pragma unroll
  for (int i = 0; i < TILES * 4; i++)
    if (t * 2 + i % 2 < w.heads)
      a.part[partial(a, w, t * 2 + i % 2) * HD + value_element(tile + i / 4, i / 2 % 2)] = o[i / 4][i % 4];
  if (warp == 0 && t == 0 && g < w.heads) {
    a.part_ml[partial(a, w, g) * 2] = top;
    a.part_ml[partial(a, w, g) * 2 + 1] = total;
  }
  if (a.fold) fold(a, w);
}

#else
// Head sizes of small test models, element by element.
#define THREADS CHUNK
__device__ __forceinline__ float element(const u8* row, int i) {
#if KV == F16
  return half_bits(((const u16*)row)[i]);
#else
  const u8* block = row + i / BLOCK * BLOCK_BYTES;
  const float d = half_bits(*(const u16*)block);
#if KV == Q8
  return d * (float)((const signed char*)block)[2 + i % BLOCK];
#else
  const int b = block[2 + i % 16];
  return d * ((float)(i % BLOCK < 16 ? b & 15 : b >> 4) - 8.0f);
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) attend(const Window a) {
  __shared__ float s[COLUMNS][CHUNK], top[COLUMNS], total[COLUMNS], keep[COLUMNS];
  grid_release();
  grid_wait();
  const Work w = work_of(a);
  const int j = threadIdx.x;
  if (j < w.heads) top[j] = -INFINITY, total[j] = 0.0f;
  for (int row = w.row0; row < w.end; row += CHUNK) {
    const int rows = w.end - row < CHUNK ? w.end - row : CHUNK;
    __syncthreads();
    if (j < rows) {
      const u8* k = w.k + row_offset(a, w.r, row + j);
      const float z = padding(a, k, w.kv_head);
      for (int g = 0; g < w.heads; g++) {
        const float* q = a.q + ((i64)w.r * a.n_kv * G + w.first + g) * HD;
        float acc = 0.0f;
        for (int i = 0; i < HD; i++) acc = fmaf(q[i] * a.scale, element(k, w.kv_head * HD + i), acc);
        s[g][j] = acc + z;
      }
    }
    __syncthreads();
    if (j < w.heads) {
      float m = top[j], sum = 0.0f;
      for (int i = 0; i < rows; i++) m = fmaxf(m, s[j][i]);
      for (int i = 0; i < rows; i++) sum += s[j][i] = expf(s[j][i] - m);
      keep[j] = expf(top[j] - m);
      total[j] = fmaf(total[j], keep[j], sum);
      top[j] = m;
    }
    __syncthreads();
    for (int i = j; i < HD; i += THREADS)
      for (int g = 0; g < w.heads; g++) {
        float acc = 0.0f;
        for (int t = 0; t < rows; t++) {
          const u8* v = w.v + row_offset(a, w.r, row + t);
          acc = fmaf(s[g][t], element(v, w.kv_head * HD + i) + padding(a, v, w.kv_head), acc);
        }
        float* o = a.part + partial(a, w, g) * HD + i;
        *o = row == w.row0 ? acc : fmaf(*o, keep[g], acc);
      }
  }
  if (w.row0 >= w.end) return;
  if (j < w.heads) {
    a.part_ml[partial(a, w, j) * 2] = top[j];
    a.part_ml[partial(a, w, j) * 2 + 1] = total[j];
  }
  if (a.fold) fold(a, w);
}
#endif

// A block per SLICE elements of a head and row, a warp per way of adding spans up.
#define SLICE 32
struct Combine {
  const float* part;
  const float* part_ml;
  const int* state;
  float* out;             // [R][out_stride], a head after the other
  i64 out_stride;
  int max_spans;
};

extern "C" __global__ void __launch_bounds__(SLICE * WAYS) combine(const Combine a) {
  __shared__ float ways[WAYS][SLICE];
  const int head = blockIdx.x, r = blockIdx.z, H = gridDim.x;
  const int y = threadIdx.x / SLICE, lane = threadIdx.x % SLICE, i = blockIdx.y * SLICE + lane;
  grid_release();
  grid_wait();
  const int spans = spans_of(state_of(a.state, r, POSITION) + 1);
  const i64 base = ((i64)r * H + head) * a.max_spans;
  float x[SPANS / WAYS][1], weight[2], way[1] = {0.0f};
#pragma unroll
  for (int k = 0; k < SPANS / WAYS; k++) {
    const int c = y + k * WAYS;
    load_written(x[k], a.part + (base + (c < spans ? c : 0)) * HD + (i < HD ? i : 0));
  }
  const float total = weigh(weight, a.part_ml, base, spans);
#pragma unroll
  for (int k = 0; k < SPANS / WAYS; k++) add_span(way, x[k], weight, y + k * WAYS, spans);
  ways[y][lane] = way[0];
  __syncthreads();
  if (y > 0 || i >= HD) return;
  float o = ways[0][lane];
#pragma unroll
  for (int k = 1; k < WAYS; k++) o += ways[k][lane];
  a.out[r * a.out_stride + head * HD + i] = o / total;
}
