// Rotary position and the bytes of a new K or V row, the same wherever a row is made (H8).
// Put in front of the kernel files that make rows, compiled with -DKV=F16|Q8|Q4.

// How element d of a head turns: with which other element, by which angle. Rows of the tables
// hold [rope_dim / 2]; elements from rope_dim on stay.
struct Turn {
  int other;
  bool stays, first;
  float c, s;
};
__device__ __forceinline__ Turn turn_of(const float* cosines, const float* sines, int position, int d,
                                        int rope_dim, int interleaved) {
  if (d >= rope_dim) return {d, true, true, 1.0f, 0.0f};
  const int half = rope_dim / 2, pair = interleaved ? d / 2 : d % half;
  const bool first = interleaved ? d % 2 == 0 : d < half;
  const i64 at = (i64)position * half + pair;
  return {interleaved ? d ^ 1 : first ? d + half : d - half, false, first, cosines[at], sines[at]};
}
__device__ __forceinline__ float turned(const Turn& t, float own, float other) {
  if (t.stays) return own;
  return t.first ? __fsub_rn(__fmul_rn(own, t.c), __fmul_rn(other, t.s))
                 : __fadd_rn(__fmul_rn(other, t.s), __fmul_rn(own, t.c));
}

// Value i of a row into the row's bytes; a warp's 32 values make a block.
__device__ __forceinline__ void encode(u8* row, int i, float v) {
#if KV == F16
  ((u16*)row)[i] = to_half_bits(v);
#elif KV == Q8
  u16 scale;
  row[i / 32 * 34 + 2 + i % 32] = q8_code(v, scale);
  if (i % 32 == 0) *(u16*)(row + i / 32 * 34) = scale;
#else
  u16 scale;
  const u8 two = q4_codes(v, scale);
  if (i % 32 < 16) row[i / 32 * 18 + 2 + i % 16] = two;
  if (i % 32 == 0) *(u16*)(row + i / 32 * 18) = scale;
#endif
}
