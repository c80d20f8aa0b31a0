// bf16 numbers and the Tensor Core. Part of device.cuh.
#pragma once

namespace xstage {

// A bfloat16, without the CUDA headers that NVRTC lacks.
struct bf16 {
  u16 bits;
};

XSTAGE_DEVICE float to_float(bf16 value) { return bits_float(static_cast<u32>(value.bits) << 16); }

// Round to nearest, ties to even.
XSTAGE_DEVICE bf16 to_bf16(float value) {
#ifdef XSTAGE_EMULATION
  u32 bits = float_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bf16{static_cast<u16>(0x7fff)};
  return bf16{static_cast<u16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
#else
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bf16{bits};
#endif
}

// Two numbers in one register; `low` comes first in memory.
XSTAGE_DEVICE u32 pack_bf16(float low, float high) {
#ifdef XSTAGE_EMULATION
  return static_cast<u32>(to_bf16(high).bits) << 16 | to_bf16(low).bits;
#else
  u32 both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#endif
}

XSTAGE_DEVICE float low_bf16(u32 both) { return bits_float(both << 16); }
XSTAGE_DEVICE float high_bf16(u32 both) { return bits_float(both & 0xffff0000u); }

// 2^x, and 1/x, as fast as the device has them.
XSTAGE_DEVICE float fast_exp2(float x) {
#ifdef XSTAGE_EMULATION
  return __builtin_exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

XSTAGE_DEVICE float fast_reciprocal(float x) {
#ifdef XSTAGE_EMULATION
  return 1.0f / x;
#else
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// Four 8x8 matrices of 16-bit numbers from shared memory. Lane 8 j + i gives the address of row i (16 bytes, aligned) of
// matrix j; afterwards r[j] of lane t holds columns 2 (t % 4) and 2 (t % 4) + 1 of row t / 4 of matrix j.
XSTAGE_DEVICE void ldmatrix4(u32 (&r)[4], const void* row) {
#ifdef XSTAGE_EMULATION
  emulation::ldmatrix4(r, row, false);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#endif
}

// The same with each matrix transposed: r[j] of lane t holds rows 2 (t % 4) and 2 (t % 4) + 1 of column t / 4.
XSTAGE_DEVICE void ldmatrix4_transposed(u32 (&r)[4], const void* row) {
#ifdef XSTAGE_EMULATION
  emulation::ldmatrix4(r, row, true);
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#endif
}

// d += a b on the Tensor Core: d is 16x8 of float, a 16x16 and b 16x8 of bf16. Lane t, with g = t / 4 and c = 2 (t % 4):
//     a[0] = A[g][c..c+1]  a[1] = A[g+8][c..]  a[2] = A[g][c+8..]  a[3] = A[g+8][c+8..]    (ldmatrix4 of A by rows)
//     b[0] = B[c..c+1][g]  b[1] = B[c+8..c+9][g]
//     d[0], d[1] = D[g][c], D[g][c+1]  d[2], d[3] = D[g+8][c], D[g+8][c+1]
XSTAGE_DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#ifdef XSTAGE_EMULATION
  const u32 b[2] = {b0, b1};
  emulation::mma_bf16(d, a, b);
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

}  // namespace xstage
