// Put in front of every kernel file before it is compiled. Uses no header, so that NVRTC needs
// nothing but itself.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef INFINITY
#define INFINITY __uint_as_float(0x7f800000u)
#endif

#define F16 0
#define Q8 1
#define Q4 2
#define F32 3

// Rows of the batch: state[row][STATE_COLUMNS] of int32, as device/kernels.py names the columns.
#define STATE_COLUMNS 8
#define TOKEN 0
#define POSITION 1
#define CELL 2
#define STREAM 3
__device__ __forceinline__ int state_of(const int* state, int row, int column) {
  return state[row * STATE_COLUMNS + column];
}

// One captured sequence runs many short kernels. With programmatic launch a kernel may begin
// while the one before it ends: everything up to grid_wait() must touch constants (weights) only, or
// what was complete before the token's `embed` was: that one calls grid_wait() first and
// grid_release() after it, so that nothing behind it begins earlier. Every thread of every such kernel
// passes grid_wait(), so that "finished" stays transitive; those of weights.cu do not and are launched
// without overlap.
__device__ __forceinline__ void grid_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void grid_release() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

__device__ __forceinline__ float half_bits(u16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
__device__ __forceinline__ u16 to_half_bits(float f) {
  u16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
__device__ __forceinline__ float lo_half(u32 w) { return half_bits((u16)(w & 0xffffu)); }
__device__ __forceinline__ float hi_half(u32 w) { return half_bits((u16)(w >> 16)); }

// Two halves in a word, the first in the low bits.
__device__ __forceinline__ u32 to_half_pair(float first, float second) {
  u32 w;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(w) : "f"(second), "f"(first));
  return w;
}
__device__ __forceinline__ u32 half_pair_minus(u32 a, u32 b) {
  u32 w;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(w) : "r"(a), "r"(b));
  return w;
}

// Byte i of w as a float: placed into the low mantissa of 2^23, then the offset is taken away.
__device__ __forceinline__ float byte_plus(u32 w, int i, float minus) {
  return __uint_as_float(__byte_perm(w, 0x4B000000u, 0x7440u + i)) - minus;
}
#define SIGNED_BIAS 8388736.0f   // 2^23 + 128, for bytes xor-ed with 0x80
#define NIBBLE_BIAS 8388616.0f   // 2^23 + 8

// Streamed once: no place in L1.
__device__ __forceinline__ uint4 load_stream(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}

// What another block of the same kernel may have written: from L2, where writes meet.
__device__ __forceinline__ void load_written(float (&v)[1], const float* p) {
  asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v[0]) : "l"(p) : "memory");
}
__device__ __forceinline__ void load_written(float (&v)[2], const float* p) {
  asm volatile("ld.global.cg.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "l"(p) : "memory");
}
__device__ __forceinline__ void load_written(float (&v)[4], const float* p) {
  asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(p) : "memory");
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int m = 16; m; m >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, m));
  return v;
}

// e^x for x <= 0: exact to a few units of float32 near 0, where softmax weights count.
__device__ __forceinline__ float weight_exp(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.4426950408889634f));
  return y;
}

// To the nearest integer, halves away from zero, as device/kvtypes.py writes it.
__device__ __forceinline__ u8 rounded(float v) {
  return (u8)(signed char)(int)__fadd_rn(v, copysignf(0.5f, v));
}

// A block of 32 values, one per lane, as bytes and a scale (device/kvtypes.py); NaN if any value is,
// so that poison stays visible.
__device__ __forceinline__ float magnitude(float v) {
  const float m = warp_max(fabsf(v));
  return __any_sync(0xffffffffu, v != v) ? __uint_as_float(0x7fffffffu) : m;
}
__device__ __forceinline__ float inverse_of(float d) { return d != 0.0f ? __fdiv_rn(1.0f, d) : 0.0f; }
// This lane's byte.
__device__ __forceinline__ u8 q8_code(float v, u16& scale) {
  const float d = __fdiv_rn(magnitude(v), 127.0f);
  scale = to_half_bits(d);
  return rounded(__fmul_rn(v, inverse_of(d)));
}
// In the first 16 lanes: this lane's number, and above it that of the lane 16 further on.
__device__ __forceinline__ u8 q4_codes(float v, u16& scale) {
  float top = v;              // the signed value of greatest magnitude, the first of equals
  int at = threadIdx.x % 32;
#pragma unroll
  for (int m = 16; m; m >>= 1) {
    const float other = __shfl_xor_sync(0xffffffffu, top, m);
    const int from = __shfl_xor_sync(0xffffffffu, at, m);
    if (fabsf(other) > fabsf(top) || (fabsf(other) == fabsf(top) && from < at)) top = other, at = from;
  }
  if (__any_sync(0xffffffffu, v != v)) top = __uint_as_float(0x7fffffffu);
  const float d = __fdiv_rn(top, -8.0f);
  scale = to_half_bits(d);
  const int n = (int)__fadd_rn(__fmul_rn(v, inverse_of(d)), 8.5f);
  const int code = n < 15 ? n : 15;
  return (u8)(code | __shfl_down_sync(0xffffffffu, code, 16) << 4);
}

// What becomes of a product: y takes its sum a; two sums a and b make one value of a paired mode.
enum Mode { PLAIN, RESIDUAL, GATED, RECURRENT };
__device__ __forceinline__ bool is_paired(int mode) { return mode == GATED || mode == RECURRENT; }
__device__ __forceinline__ float sigmoid(float a) { return 1.0f / (1.0f + expf(-a)); }
__device__ __forceinline__ void finish(int mode, float* y, float a, float b) {
  if (mode == PLAIN) *y = a;
  if (mode == RESIDUAL) *y += a;
  if (mode == GATED) *y = sigmoid(a) * a * b;
}

// Asynchronous copies into shared memory, BYTES = 4, 8 or 16 at a time; zeros where not `in`. Every
// thread waits for its own groups; a block's barrier shows them to the others.
template <int BYTES>
__device__ __forceinline__ void copy_async(void* to, const void* from, bool in) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  if (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(from), "r"(in ? 16 : 0) : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(BYTES), "r"(in ? BYTES : 0) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until no more than N of this thread's groups are under way.
template <int N>
__device__ __forceinline__ void copy_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#if __CUDA_ARCH__ >= 900
// Bulk copies into shared memory by the copy engine of a multiprocessor: one thread orders up to
// some KiB, a barrier in shared memory counts what has landed. A barrier completes a phase when its
// one arrival has been made and the bytes it was told to expect are there.
__device__ __forceinline__ void barrier_init(u64* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(barrier)) : "memory");
}
__device__ __forceinline__ void barriers_are_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"((u32)__cvta_generic_to_shared(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u64* barrier, u32 parity) {
  u32 done;
  do asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                  : "=r"(done) : "r"((u32)__cvta_generic_to_shared(barrier)), "r"(parity) : "memory");
  while (!done);
}
__device__ __forceinline__ void copy_bulk(void* to, const void* from, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes), "r"((u32)__cvta_generic_to_shared(barrier)) : "memory");
}
#endif

// c (16 x 8, float32) += a (16 x 16) b (16 x 8) in half precision, over a warp: row g or g + 8 and
// column 2t of c, with g = lane / 4 and t = lane % 4, as PTX lays out mma.m16n8k16.
__device__ __forceinline__ void mma_f16(float (&c)[4], const u32 (&a)[4], const u32 (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four 8 x 8 matrices of halves out of shared memory: lane 8i + j gives the address of row j of
// matrix i. A lane gets elements 2t and 2t + 1 of row g, or with `trans` of column g.
__device__ __forceinline__ void ldmatrix4(u32 (&r)[4], const void* row, bool trans) {
  const u32 at = (u32)__cvta_generic_to_shared(row);
  if (trans)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
