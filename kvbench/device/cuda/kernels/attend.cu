// Grouped-query attention over one window. Compile with -DKV=F16|Q8|Q4, -DHD=elements of a head
// (64, 128 and 256 are fast, others go element by element) and -DG=query heads per KV head.
//
// The window is a slot, a device-resident cache or mapped host memory: row j of a sequence lies at
// base + lane * stream_bytes + cell(j) * pitch, cell(j) = j or an entry of an index list. A row of
// the batch attends to rows 0..position and to no byte beyond them: rows past the end are skipped
// by index, so what a rounded-up delivery left there cannot matter (H5). A row's
// result is made of partials over a fixed CHUNK of rows, combined in an order that depends on its
// position alone.

#define CHUNK 64

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
  int max_chunks;
  float scale;
  const float* q;         // [R][H][HD]
  float* part;            // [R][H][max_chunks][HD]
  float* part_ml;         // [R][H][max_chunks][2]: maximum, sum
};

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

// Softmax weights of one chunk: s[g][j] in, p[j][GP] out, maximum and sum to part_ml.
#define GP ((G + 3) / 4 * 4)
__device__ __forceinline__ void weigh(const Window& a, float (*s)[CHUNK], float* p, int rows, int head, int r, int chunk, int H) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  for (int g = warp; g < GP; g += warps) {
    if (g >= G) {
      for (int j = lane; j < CHUNK; j += 32) p[j * GP + g] = 0.0f;
      continue;
    }
    float m = -INFINITY;
    for (int j = lane; j < rows; j += 32) m = fmaxf(m, s[g][j]);
    m = warp_max(m);
    float sum = 0.0f;
    for (int j = lane; j < rows; j += 32) {
      const float e = expf(s[g][j] - m);
      p[j * GP + g] = e;
      sum += e;
    }
    sum = warp_sum(sum);
    if (lane == 0) {
      float* ml = a.part_ml + (((i64)r * H + head * G + g) * a.max_chunks + chunk) * 2;
      ml[0] = m;
      ml[1] = sum;
    }
  }
}

#if HD == 64 || HD == 128 || HD == 256
#define UNITS (HD / 64)                       // lanes that share a row, 64 values each
#define THREADS (CHUNK * UNITS)
#define PARTS (THREADS / (HD / 2))
#define ALIGN (SEG % 16 == 0 ? 16 : SEG % 8 == 0 ? 8 : 4)
#define SROW (KV == F16 ? SEG + 16 : SEG)     // row stride in shared memory, free of bank conflicts
#define QROW 68                               // likewise for 64 values of q

__device__ __forceinline__ void fetch(const Window& a, const u8* base, u8* to, int r, int row0, int rows) {
  const int pieces = SEG / ALIGN;
  for (int i = threadIdx.x; i < rows * pieces; i += THREADS) {
    const int j = i / pieces, piece = i % pieces;
    const u8* from = base + row_offset(a, r, row0 + j) + piece * ALIGN;
    copy_async<ALIGN>(to + j * SROW + piece * ALIGN, from, true);
  }
  copy_commit();
}

// acc[g] += q[g] . k over this lane's 64 values; q points at [G][UNITS][QROW] plus the unit.
__device__ __forceinline__ void dot4(float (&acc)[G], const float* q, int at, float a, float b, float c, float d) {
#pragma unroll
  for (int g = 0; g < G; g++) {
    const float4 x = *(const float4*)(q + g * UNITS * QROW + at);
    acc[g] = fmaf(a, x.x, acc[g]);
    acc[g] = fmaf(b, x.y, acc[g]);
    acc[g] = fmaf(c, x.z, acc[g]);
    acc[g] = fmaf(d, x.w, acc[g]);
  }
}

__device__ __forceinline__ void score_unit(float (&acc)[G], const u8* k, const float* q, int unit) {
#if KV == F16
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int piece = (i + 8 / UNITS * unit) & 7;   // spreads the units over the banks
    const uint4 w = *(const uint4*)(k + piece * 16);
    dot4(acc, q, piece * 8, lo_half(w.x), hi_half(w.x), lo_half(w.y), hi_half(w.y));
    dot4(acc, q, piece * 8 + 4, lo_half(w.z), hi_half(w.z), lo_half(w.w), hi_half(w.w));
  }
#else
  u32 w[2 * BLOCK_BYTES / 4];
#pragma unroll
  for (int i = 0; i < 2 * BLOCK_BYTES / 4; i++) w[i] = ((const u32*)k)[i];
#pragma unroll
  for (int b = 0; b < 2; b++) {
    const int at = b * BLOCK_BYTES;
    float part[G];
#pragma unroll
    for (int g = 0; g < G; g++) part[g] = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i += 4) {
      float f[4];
#pragma unroll
      for (int e = 0; e < 4; e++) {
#if KV == Q8
        const int o = at + 2 + i + e;
        f[e] = byte_plus(w[o / 4] ^ 0x80808080u, o % 4, SIGNED_BIAS);
#else
        const int o = at + 2 + (i + e) % 16;
        f[e] = byte_plus((w[o / 4] >> (i < 16 ? 0 : 4)) & 0x0f0f0f0fu, o % 4, NIBBLE_BIAS);
#endif
      }
      dot4(part, q, b * 32 + i, f[0], f[1], f[2], f[3]);
    }
    const float d = at % 4 ? hi_half(w[at / 4]) : lo_half(w[at / 4]);
#pragma unroll
    for (int g = 0; g < G; g++) acc[g] = fmaf(d, part[g], acc[g]);
  }
#endif
}

// The two values of V that pair i of a head stands for, and which elements they are.
__device__ __forceinline__ void value_pair(const u8* v, int i, float& a, float& b) {
#if KV == F16
  const u32 w = *(const u32*)(v + i * 4);
  a = lo_half(w), b = hi_half(w);
#elif KV == Q8
  const u8* block = v + i / 16 * BLOCK_BYTES;
  const float d = half_bits(*(const u16*)block);
  const u32 w = (u32)(*(const u16*)(block + 2 + i % 16 * 2)) ^ 0x8080u;
  a = d * byte_plus(w, 0, SIGNED_BIAS), b = d * byte_plus(w, 1, SIGNED_BIAS);
#else
  const u8* block = v + i / 16 * BLOCK_BYTES;
  const float d = half_bits(*(const u16*)block);
  const u32 w = block[2 + i % 16];
  a = d * ((float)(w & 15) - 8.0f), b = d * ((float)(w >> 4) - 8.0f);
#endif
}
__device__ __forceinline__ int pair_first(int i) { return KV == Q4 ? i / 16 * 32 + i % 16 : 2 * i; }
#define PAIR_STEP (KV == Q4 ? 16 : 1)

extern "C" __global__ void __launch_bounds__(THREADS) attend(const Window a) {
  extern __shared__ uint4 shared[];
  __shared__ float s[G][CHUNK];
  __shared__ __align__(16) float p[CHUNK * GP];
  __shared__ __align__(16) float q[G * UNITS * QROW];
  const int chunk = blockIdx.x, head = blockIdx.y, r = blockIdx.z, H = a.n_kv * G;
  grid_release();
  grid_wait();
  const int row0 = chunk * CHUNK, count = state_of(a.state, r, POSITION) + 1;
  if (row0 >= count) return;
  const int rows = count - row0 < CHUNK ? count - row0 : CHUNK;
  u8* ks = (u8*)shared;
  u8* vs = ks + CHUNK * SROW;
  const u8* k = a.k + lane_of(a, r);
  const u8* v = a.v + lane_of(a, r);
  fetch(a, k + head * SEG, ks, r, row0, rows);
  fetch(a, v + head * SEG, vs, r, row0, rows);
  for (int i = threadIdx.x; i < G * HD; i += THREADS)
    q[i / HD * UNITS * QROW + i % HD / 64 * QROW + i % 64] = a.q[((i64)r * H + head * G) * HD + i] * a.scale;
  copy_wait<1>();
  __syncthreads();

  const int j = threadIdx.x / UNITS, unit = threadIdx.x % UNITS;
  float acc[G];
#pragma unroll
  for (int g = 0; g < G; g++) acc[g] = 0.0f;
  if (j < rows) score_unit(acc, ks + j * SROW + unit * (SEG / UNITS), q + unit * QROW, unit);
#pragma unroll
  for (int g = 0; g < G; g++)
#pragma unroll
    for (int m = 1; m < UNITS; m <<= 1) acc[g] += __shfl_xor_sync(0xffffffffu, acc[g], m);
  if (j < rows && unit == 0) {
    const float z = padding(a, k + row_offset(a, r, row0 + j), head);
#pragma unroll
    for (int g = 0; g < G; g++) s[g][j] = acc[g] + z;
  }
  __syncthreads();
  weigh(a, s, p, rows, head, r, chunk, H);
  copy_wait<0>();
  __syncthreads();

  // Each thread sums one pair of elements over its part of the rows.
  const int pair = threadIdx.x % (HD / 2), part = threadIdx.x / (HD / 2);
  float o[G][2];
#pragma unroll
  for (int g = 0; g < G; g++) o[g][0] = o[g][1] = 0.0f;
  const int end = rows < (part + 1) * (CHUNK / PARTS) ? rows : (part + 1) * (CHUNK / PARTS);
  for (int i = part * (CHUNK / PARTS); i < end; i++) {
    float v0, v1;
    value_pair(vs + i * SROW, pair, v0, v1);
    if (pair == 0 && a.pad_blocks) v0 += padding(a, v + row_offset(a, r, row0 + i), head);
#pragma unroll
    for (int g = 0; g < G; g++) {
      o[g][0] = fmaf(p[i * GP + g], v0, o[g][0]);
      o[g][1] = fmaf(p[i * GP + g], v1, o[g][1]);
    }
  }
  __syncthreads();
  float* sums = (float*)shared;   // [PARTS][G][HD], over the rows that are no longer needed
#pragma unroll
  for (int g = 0; g < G; g++) {
    sums[(part * G + g) * HD + pair_first(pair)] = o[g][0];
    sums[(part * G + g) * HD + pair_first(pair) + PAIR_STEP] = o[g][1];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < G * HD; i += THREADS) {
    float total = 0.0f;
#pragma unroll
    for (int t = 0; t < PARTS; t++) total += sums[t * G * HD + i];
    a.part[(((i64)r * H + head * G + i / HD) * a.max_chunks + chunk) * HD + i % HD] = total;
  }
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
  __shared__ float s[G][CHUNK];
  __shared__ float p[CHUNK * GP];
  const int chunk = blockIdx.x, head = blockIdx.y, r = blockIdx.z, H = a.n_kv * G;
  grid_release();
  grid_wait();
  const int row0 = chunk * CHUNK, count = state_of(a.state, r, POSITION) + 1;
  if (row0 >= count) return;
  const int rows = count - row0 < CHUNK ? count - row0 : CHUNK;
  const int j = threadIdx.x;
  if (j < rows) {
    const u8* k = a.k + lane_of(a, r) + row_offset(a, r, row0 + j);
    const float z = padding(a, k, head);
    for (int g = 0; g < G; g++) {
      const float* q = a.q + ((i64)r * H + head * G + g) * HD;
      float acc = 0.0f;
      for (int i = 0; i < HD; i++) acc = fmaf(q[i] * a.scale, element(k, head * HD + i), acc);
      s[g][j] = acc + z;
    }
  }
  __syncthreads();
  weigh(a, s, p, rows, head, r, chunk, H);
  __syncthreads();
  for (int i = threadIdx.x; i < HD; i += THREADS)
    for (int g = 0; g < G; g++) {
      float acc = 0.0f;
      for (int t = 0; t < rows; t++) {
        const u8* v = a.v + lane_of(a, r) + row_offset(a, r, row0 + t);
        acc = fmaf(p[t * GP + g], element(v, head * HD + i) + padding(a, v, head), acc);
      }
      a.part[(((i64)r * H + head * G + g) * a.max_chunks + chunk) * HD + i] = acc;
    }
}
#endif

// out[r][h] = sum of partials, weighted to their common maximum. One block per (head, row); group
// y of the block takes chunks y, y + 4, ...; groups and lanes are summed in a fixed order.
struct Combine {
  const float* part;
  const float* part_ml;
  const int* state;
  float* out;             // [R][out_stride], a head after the other
  i64 out_stride;
  int max_chunks;
};

extern "C" __global__ void __launch_bounds__(1024) combine(const Combine a) {
  extern __shared__ float weight[];            // [max_chunks], then the chunks' sums likewise
  __shared__ float warps[32], groups[4][HD];
  const int head = blockIdx.x, r = blockIdx.y, H = gridDim.x;
  const int x = threadIdx.x, y = threadIdx.y, t = y * blockDim.x + x, threads = blockDim.x * 4;
  const int warp = t / 32, lane = t % 32, n_warps = threads / 32;
  grid_release();
  grid_wait();
  const int chunks = (state_of(a.state, r, POSITION) + CHUNK) / CHUNK;
  const i64 base = ((i64)r * H + head) * a.max_chunks;
  float m = -INFINITY;
  float* sums = weight + a.max_chunks;
  for (int c = t; c < chunks; c += threads) {
    const float2 ml = *(const float2*)(a.part_ml + (base + c) * 2);
    m = fmaxf(m, ml.x);
    weight[c] = ml.x;
    sums[c] = ml.y;
  }
  m = warp_max(m);
  if (lane == 0) warps[warp] = m;
  __syncthreads();
  for (int w = 0; w < n_warps; w++) m = fmaxf(m, warps[w]);
  __syncthreads();
  float sum = 0.0f;
  for (int c = t; c < chunks; c += threads) {
    const float w = expf(weight[c] - m);
    weight[c] = w;
    sum = fmaf(w, sums[c], sum);
  }
  sum = warp_sum(sum);
  if (lane == 0) warps[warp] = sum;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < n_warps; w++) total += warps[w];
  for (int i = x; i < HD; i += blockDim.x) {
    float o = 0.0f;
#pragma unroll 8
    for (int c = y; c < chunks; c += 4) o = fmaf(weight[c], a.part[(base + c) * HD + i], o);
    groups[y][i] = o;
  }
  __syncthreads();
  for (int i = t; i < HD; i += threads)
    a.out[r * a.out_stride + head * HD + i] = ((groups[0][i] + groups[1][i]) + (groups[2][i] + groups[3][i])) / total;
}
