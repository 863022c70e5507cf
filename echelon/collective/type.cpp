#include "echelon/collective/type.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "echelon/base/error.h"

namespace echelon {
namespace {

// In the order of the enumerations.
constexpr const char* kTypes[] = {"fp64",  "fp32", "fp16",  "bf16", "int64",
                                  "int32", "int8", "uint8", "bool"};
constexpr const char* kOps[] = {"sum", "average", "min", "max", "product"};

template <class Value, std::size_t kCount>
Value parse(std::string_view text, const char* const (&names)[kCount], std::string_view what) {
  for (std::size_t i = 0; i < kCount; ++i) {
    if (text == names[i]) return Value(i);
  }
  throw InvalidArgument(
      fmt::format("\"{}\" is no {}; allowed: {}", text, what, fmt::join(names, ", ")));
}

}  // namespace

const char* name(DataType type) { return kTypes[std::size_t(type)]; }

const char* name(ReduceOp op) { return kOps[std::size_t(op)]; }

DataType parse_data_type(std::string_view text) {
  return parse<DataType>(text, kTypes, "type of elements");
}

ReduceOp parse_reduce_op(std::string_view text) { return parse<ReduceOp>(text, kOps, "reduction"); }

void check(DataType type, ReduceOp op) {
  if (op == ReduceOp::average && !is_floating(type)) {
    throw InvalidArgument(
        fmt::format("an average of {} would have to be rounded; use sum, or a floating-point type",
                    name(type)));
  }
}

}  // namespace echelon
