// The element types and reductions of collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace echelon {

// A boolean is a byte, 0 or 1, as in a torch tensor.
enum class DataType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i8, u8, boolean };

// `average` is the sum divided by the number of ranks, for floating-point types only.
enum class ReduceOp : std::uint8_t { sum, average, min, max, product };

// Bytes of one element.
constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::f64:
    case DataType::i64:
      return 8;
    case DataType::f32:
    case DataType::i32:
      return 4;
    case DataType::f16:
    case DataType::bf16:
      return 2;
    case DataType::i8:
    case DataType::u8:
    case DataType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DataType type) { return type <= DataType::bf16; }

// "fp64", "fp32", "fp16", "bf16", "int64", "int32", "int8", "uint8", "bool".
const char* name(DataType type);
// "sum", "average", "min", "max", "product".
const char* name(ReduceOp op);

// Parse a name(). Throw InvalidArgument with the allowed names.
DataType parse_data_type(std::string_view text);
ReduceOp parse_reduce_op(std::string_view text);

// Throws InvalidArgument if the type does not support the reduction: the average of integers or
// bools would have to be rounded.
void check(DataType type, ReduceOp op);

}  // namespace echelon
