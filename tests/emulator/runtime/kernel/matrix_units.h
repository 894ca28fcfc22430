// Tensor core instructions, for kernels that name them in inline assembly (see __CUDA_EMULATOR__).
#pragma once

namespace emulator {

// D += A B for one warp: mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32. Which element of a fragment is which
// element of the matrix: PTX ISA, "Matrix Fragments for mma.m16n8k16". The order of summation is not the hardware's.
static inline void mma_m16n8k16_bf16(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const char* file = __builtin_FILE(),
    int line = __builtin_LINE()) {
  float rows[16][16], columns[8][16];
  const auto element = [](uint64_t bits, int position) {
    return from_bits<float>((bits >> 16 * position & 0xffff) << 16);
  };
  for (int half = 0; half < 2; half++) {  // columns 0..7 and 8..15 of A
    unsigned mask = 0xffffffffu;
    const uint64_t pair = a[2 * half] | static_cast<uint64_t>(a[2 * half + 1]) << 32;
    const uint64_t* values = emulator_warp_exchange(&mask, pair, "mma.m16n8k16", file, line);
    for (int lane = 0; lane < 32; lane++)
      for (int i = 0; i < 4; i++)
        rows[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2 + half * 8] = element(values[lane], i);
  }
  unsigned mask = 0xffffffffu;
  const uint64_t* values =
      emulator_warp_exchange(&mask, b[0] | static_cast<uint64_t>(b[1]) << 32, "mma.m16n8k16", file, line);
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) columns[lane / 4][lane % 4 * 2 + i % 2 + i / 2 * 8] = element(values[lane], i);
  const int group = static_cast<int>(emulator_thread->lane) / 4, member = static_cast<int>(emulator_thread->lane) % 4;
  for (int i = 0; i < 4; i++)
    for (int k = 0; k < 16; k++) d[i] += rows[group + i / 2 * 8][k] * columns[member * 2 + i % 2][k];
}

}  // namespace emulator
