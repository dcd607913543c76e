// Put in front of every kernel file before it is compiled. Uses no header, so that NVRTC needs
// nothing but itself. Every function here is a pure function of its arguments.

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
// while the one before it ends: everything up to grid_wait() must touch constants (weights) only.
// Every thread of every kernel passes grid_wait(), so that "finished" stays transitive.
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

// To the nearest integer, halves away from zero, as device/kvtypes.py writes it.
__device__ __forceinline__ u8 rounded(float v) {
  return (u8)(signed char)(int)__fadd_rn(v, copysignf(0.5f, v));
}
