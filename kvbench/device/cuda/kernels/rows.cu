// New K and V rows: rotated, encoded once, then stored to the host and placed in a slot from that
// one encoding (H8). Compile with -DKV=F16|Q8|Q4.

// The greatest magnitude of a warp's 32 values; NaN if any is, so that poison stays visible.
__device__ __forceinline__ float magnitude(float v) {
  const float m = warp_max(fabsf(v));
  return __any_sync(0xffffffffu, v != v) ? __uint_as_float(0x7fffffffu) : m;
}

struct Encode {
  const float* qkv;         // [R][q_width + 2 kv_width]
  float* q;                 // [R][q_width]
  u8* rows;                 // [R][2][pitch]
  const int* state;
  const float* cosines;     // [positions][rope_dim / 2]
  const float* sines;
  i64 pitch;
  int q_width, kv_width, head_dim, rope_dim, interleaved;
};

__device__ __forceinline__ float rotated(const Encode& a, const float* head, int d, int position) {
  const float own = head[d];
  if (d >= a.rope_dim) return own;
  const int half = a.rope_dim / 2;
  const int pair = a.interleaved ? d / 2 : d % half;
  const bool first = a.interleaved ? d % 2 == 0 : d < half;
  const float other = head[a.interleaved ? d ^ 1 : first ? d + half : d - half];
  const float c = a.cosines[(i64)position * half + pair], s = a.sines[(i64)position * half + pair];
  return first ? __fsub_rn(__fmul_rn(own, c), __fmul_rn(other, s))
               : __fadd_rn(__fmul_rn(other, s), __fmul_rn(own, c));
}

// Grid (q blocks + K blocks + V blocks of 256 values, R): a block of threads is one padded group.
extern "C" __global__ void __launch_bounds__(256) rotate_encode(const Encode a) {
  const int r = blockIdx.y, q_blocks = (a.q_width + 255) / 256, kv_blocks = (gridDim.x - q_blocks) / 2;
  const float* in = a.qkv + (i64)r * (a.q_width + 2 * a.kv_width);
  grid_release();
  grid_wait();
  const int position = state_of(a.state, r, POSITION);
  if (blockIdx.x < q_blocks) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < a.q_width)
      a.q[(i64)r * a.q_width + i] = rotated(a, in + i - i % a.head_dim, i % a.head_dim, position);
    return;
  }
  const int which = (blockIdx.x - q_blocks) / kv_blocks, group = (blockIdx.x - q_blocks) % kv_blocks;
  const int i = group * 256 + threadIdx.x;
  const float* kv = in + a.q_width + which * a.kv_width;
  float v = 0.0f;
  if (i < a.kv_width)
    v = which ? kv[i] : rotated(a, kv + i - i % a.head_dim, i % a.head_dim, position);
  u8* row = a.rows + ((i64)r * 2 + which) * a.pitch;
#if KV == F16
  if (i < a.pitch / 2) ((u16*)row)[i] = to_half_bits(v);
#elif KV == Q8
  u8* block = row + i / 32 * 34;
  const float d = __fdiv_rn(magnitude(v), 127.0f);
  const float inverse = d != 0.0f ? __fdiv_rn(1.0f, d) : 0.0f;
  block[2 + i % 32] = rounded(__fmul_rn(v, inverse));
  if (i % 32 == 0) *(u16*)block = to_half_bits(d);
#else
  u8* block = row + i / 32 * 18;
  if (i >= a.kv_width) {      // padding is zero bytes, where the code for zero is not
    if (i % 32 < 9) ((u16*)block)[i % 32] = 0;
    return;
  }
  float top = v;              // the signed value of greatest magnitude, the first of equals
  int at = i % 32;
#pragma unroll
  for (int m = 16; m; m >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, top, m);
    const int from = __shfl_xor_sync(0xffffffffu, at, m);
    if (fabsf(other) > fabsf(top) || (fabsf(other) == fabsf(top) && from < at)) top = other, at = from;
  }
  if (magnitude(v) != magnitude(v)) top = magnitude(v);
  const float d = __fdiv_rn(top, -8.0f);
  const float inverse = d != 0.0f ? __fdiv_rn(1.0f, d) : 0.0f;
  const int n = (int)__fadd_rn(__fmul_rn(v, inverse), 8.5f);
  const int nibble = n < 15 ? n : 15;
  const int upper = __shfl_down_sync(0xffffffffu, nibble, 16);
  if (i % 32 < 16) block[2 + i % 16] = (u8)(nibble | upper << 4);
  if (i % 32 == 0) *(u16*)block = to_half_bits(d);
#endif
}

// rows[r] -> K and V of the row's cell: row_bytes of them, never the padding. The destination may
// be device memory (a slot, a resident cache) or mapped pinned host memory. Grid (2, R).
struct Put {
  const u8* rows;        // [R][2][pitch]
  u8* to;
  const int* state;
  i64 part_bytes, stream_bytes, pitch;
  int row_bytes, lane_column;
};

extern "C" __global__ void __launch_bounds__(128) put_rows(const Put a) {
  const int which = blockIdx.x, r = blockIdx.y;
  grid_release();
  grid_wait();
  const u8* from = a.rows + ((i64)r * 2 + which) * a.pitch;
  u8* to = a.to + which * a.part_bytes + state_of(a.state, r, a.lane_column) * a.stream_bytes +
           state_of(a.state, r, CELL) * a.pitch;
  const int vectors = a.row_bytes / 16;
  for (int i = threadIdx.x; i < vectors; i += 128) ((uint4*)to)[i] = ((const uint4*)from)[i];
  const int i = vectors * 8 + threadIdx.x;   // what is left, in halves
  if (i < a.row_bytes / 2) ((u16*)to)[i] = ((const u16*)from)[i];
}
