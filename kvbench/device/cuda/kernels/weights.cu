// Weights made or converted on the device. Compile with -DWT=F16|Q8|Q4|F32.

// Philox4x64-10 as NumPy's Generator counts it: the first four words come from counter 1.
__device__ __forceinline__ void philox(u64 (&c)[4], u64 k0, u64 k1) {
#pragma unroll
  for (int i = 0; i < 10; i++) {
    const u64 a = 0xD2E7470EE14C6C93ull, b = 0xCA5A826395121157ull;
    const u64 hi0 = __umul64hi(a, c[0]), lo0 = a * c[0], hi1 = __umul64hi(b, c[2]), lo1 = b * c[2];
    c[0] = hi1 ^ c[1] ^ k0, c[1] = lo1, c[2] = hi0 ^ c[3] ^ k1, c[3] = lo0;
    k0 += 0x9E3779B97F4A7C15ull, k1 += 0xBB67AE8584CAA73Bull;
  }
}

struct Synth {
  float* out;            // [count]: elements first .. first + count - 1 of the tensor
  u64 k0, k1;
  i64 first, count;      // first is a multiple of 16
  i64 sharp;             // elements before this one are multiplied by sharp_factor as well
  float unit, factor, sharp_factor, offset;
};

// 16 values of 16 bits from each counter; the same float32 operations as the host's version.
extern "C" __global__ void __launch_bounds__(256) synthesize(const Synth a) {
  const i64 block = (i64)blockIdx.x * 256 + threadIdx.x;
  if (block * 16 >= a.count) return;
  u64 c[4] = {(u64)(a.first / 16 + block + 1), 0, 0, 0};
  philox(c, a.k0, a.k1);
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const i64 at = block * 16 + i;
    const float bits = (float)((c[i / 4] >> (i % 4 * 16)) & 0xffff);
    float v = __fmul_rn(__fmul_rn(bits - 32767.5f, a.unit), a.factor);
    if (a.first + at < a.sharp) v = __fmul_rn(v, a.sharp_factor);
    if (at < a.count) a.out[at] = __fadd_rn(v, a.offset);
  }
}

struct Pack {
  const float* in;
  u8* out;
  u16* scale;
  i64 count;             // a multiple of 32 for Q8 and Q4
};

// One thread per value; a warp is one block of 32.
extern "C" __global__ void __launch_bounds__(256) pack(const Pack a) {
  const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
  const float v = i < a.count ? a.in[i] : 0.0f;
#if WT == F16
  if (i < a.count) ((u16*)a.out)[i] = to_half_bits(v);
#elif WT == F32
  if (i < a.count) ((float*)a.out)[i] = v;
#else
  u16 scale;
  const u8 code = WT == Q8 ? q8_code(v, scale) : q4_codes(v, scale);
  if (i >= a.count) return;
  if (WT == Q8) a.out[i] = code;
  else if (i % 32 < 16) a.out[i / 32 * 16 + i % 16] = code;
  if (i % 32 == 0) a.scale[i / 32] = scale;
#endif
}

struct Read {
  const u8* in;
  u64 vectors;           // of 16 bytes
  u32* sink;
};

// Reads everything once and keeps nothing: the device memory's read rate.
extern "C" __global__ void __launch_bounds__(512) read_all(const Read a) {
  const uint4* in = (const uint4*)a.in;
  const u64 vectors = a.vectors;
  u32 x = 0;
  const u64 stride = (u64)gridDim.x * 512;
  u64 i = (u64)blockIdx.x * 512 + threadIdx.x;
  for (; i + 3 * stride < vectors; i += 4 * stride) {
    const uint4 p = load_stream(in + i), q = load_stream(in + i + stride);
    const uint4 r = load_stream(in + i + 2 * stride), s = load_stream(in + i + 3 * stride);
    x ^= p.x ^ p.y ^ p.z ^ p.w ^ q.x ^ q.y ^ q.z ^ q.w ^ r.x ^ r.y ^ r.z ^ r.w ^ s.x ^ s.y ^ s.z ^ s.w;
  }
  for (; i < vectors; i += stride) {
    const uint4 p = load_stream(in + i);
    x ^= p.x ^ p.y ^ p.z ^ p.w;
  }
  if (x == 0x9e3779b9u) *a.sink = x;
}
