// New K and V rows: rotated, encoded once, then stored to the host and placed in a slot from that
// one encoding (H8). Compile with -DKV=F16|Q8|Q4.

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

__device__ __forceinline__ float rotated(const Encode& a, const float* values, int i, int position) {
  const int d = i % a.head_dim;
  const Turn t = turn_of(a.cosines, a.sines, position, d, a.rope_dim, a.interleaved);
  return turned(t, values[i], values[i - d + t.other]);
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
    if (i < a.q_width) a.q[(i64)r * a.q_width + i] = rotated(a, in, i, position);
    return;
  }
  const int which = (blockIdx.x - q_blocks) / kv_blocks, group = (blockIdx.x - q_blocks) % kv_blocks;
  const int i = group * 256 + threadIdx.x;
  const float* kv = in + a.q_width + which * a.kv_width;
  float v = 0.0f;
  if (i < a.kv_width) v = which ? kv[i] : rotated(a, kv, i, position);
  u8* row = a.rows + ((i64)r * 2 + which) * a.pitch;
#if KV == F16
  if (i < a.pitch / 2) encode(row, i, v);
#elif KV == Q8
  encode(row, i, v);
#else
  if (i < a.kv_width)
    encode(row, i, v);
  else if (i % 32 < 9)        // padding is zero bytes, where the code for zero is not
    ((u16*)(row + i / 32 * 18))[i % 32] = 0;
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
