// Elements of several buffers combined into one, at the speed of memory: the arithmetic of every
// collective on the CPU.
//
//   const void* in[] = {mine, theirs};
//   reduce(DataType::bf16, ReduceOp::sum, out, in, 2, count);
//
// Bits: out[i] depends on in[0][i], in[1][i], … and their order alone, never on i, on count, on
// alignment or on how a buffer was cut into pieces. So ranks that reduce different pieces, or the
// same piece twice, agree to the last bit. The order is that of the inputs, ((in0 + in1) + in2) +
// …; whoever reduces a tree or a ring decides it. Only which NaN comes out of two different NaNs is
// left open, as it is by the processor.
//
// Meaning by type:
//   fp64, fp32   in their own precision, each step rounded to nearest even; no fused multiply-add
//   fp16, bf16   accumulated in fp32 and rounded to nearest even once, at the end
//   integers     wrap around
//   bool         sum and max are or, product and min are and
// `average` multiplies the finished sum by f = 1 / divisor, both in the type of accumulation (fp64
// for fp64, fp32 for the others), before the rounding to fp16 or bf16. For a power of two that is
// the exact quotient; for other divisors it may be one unit in the last place off it.
// `min` and `max` give NaN when any input is NaN, and of equal values (-0 and 0) the first.
#pragma once

#include <cstddef>

#include "echelon/collective/type.h"

namespace echelon {

constexpr int kMostInputs = 1024;

// out[i] = in[0][i] op in[1][i] op …, for i < count. `out` may be one of the inputs, exactly; else
// it overlaps none. No pointer need be aligned. One input is copied (and averaged). Throws
// InvalidArgument when `inputs` is not in 1 … kMostInputs, where check() does, and for a divisor
// below 1 of an average; `divisor` means nothing to other operations.
void reduce(DataType type, ReduceOp op, void* out, const void* const* in, int inputs,
            std::size_t count, int divisor = 1);

// The last step of an average alone, data[i] *= 1 / divisor, for algorithms that hand partial sums
// on. Throws as reduce.
void scale(DataType type, void* data, std::size_t count, int divisor);

// fp16 or bf16 to fp32, which is exact, or back, rounded to nearest even; NaN stays NaN, and what
// is too large becomes infinite. `in` and `out` do not overlap. Throws InvalidArgument for other
// pairs of types.
void convert(DataType from, const void* in, DataType to, void* out, std::size_t count);

}  // namespace echelon
