// Vectors of every type with small whole numbers in them: sums, products and averages are exact, so
// a test can say to the bit what must come out.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "echelon/collective/group.h"
#include "echelon/collective/reduce.h"
#include "echelon/collective/type.h"

namespace echelon {

inline const std::vector<DataType> all_types = {DataType::f64,  DataType::f32, DataType::f16,
                                                DataType::bf16, DataType::i64, DataType::i32,
                                                DataType::i8,   DataType::u8,  DataType::boolean};
inline const std::vector<ReduceOp> all_ops = {ReduceOp::sum, ReduceOp::average, ReduceOp::min,
                                              ReduceOp::max, ReduceOp::product};

using Bytes = std::vector<std::byte>;

inline void store(DataType type, double value, std::byte* to) {
  const auto put = [&](auto typed) { std::memcpy(to, &typed, sizeof typed); };
  switch (type) {
    case DataType::f64:
      return put(value);
    case DataType::f32:
      return put(float(value));
    case DataType::f16:
    case DataType::bf16: {
      const auto narrow = float(value);
      return convert(DataType::f32, &narrow, type, to, 1);
    }
    case DataType::i64:
      return put(std::int64_t(value));
    case DataType::i32:
      return put(std::int32_t(value));
    case DataType::i8:
      return put(std::int8_t(value));
    case DataType::u8:
      return put(std::uint8_t(value));
    case DataType::boolean:
      return put(std::uint8_t(value != 0));
  }
}

inline double load(DataType type, const std::byte* from) {
  const auto get = [&](auto typed) {
    std::memcpy(&typed, from, sizeof typed);
    return double(typed);
  };
  switch (type) {
    case DataType::f64:
      return get(double());
    case DataType::f32:
      return get(float());
    case DataType::f16:
    case DataType::bf16: {
      float wide = 0;
      convert(type, from, DataType::f32, &wide, 1);
      return wide;
    }
    case DataType::i64:
      return get(std::int64_t());
    case DataType::i32:
      return get(std::int32_t());
    case DataType::i8:
      return get(std::int8_t());
    default:
      return get(std::uint8_t());
  }
}

// Element i of a rank's input; `salt` tells one call's numbers from another's.
inline double number(DataType type, ReduceOp op, int rank, std::size_t i, int salt) {
  const auto mix = i * 7 + std::size_t(rank) * 3 + std::size_t(salt) * 5 + i / 13;
  if (type == DataType::boolean) return (mix % 11) > (op == ReduceOp::product ? 0 : 8);
  if (op == ReduceOp::product) return rank < 4 && mix % 3 == 0 ? 2 : 1;
  const double value = double(mix % 3);
  return type == DataType::u8 ? value : value - 1;
}

inline Bytes vector_of(DataType type, ReduceOp op, int rank, std::size_t count, int salt) {
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i)
    store(type, number(type, op, rank, i, salt), bytes.data() + i * size_of(type));
  return bytes;
}

// What the vectors of all ranks come to.
inline Bytes reduced(DataType type, ReduceOp op, int world, std::size_t count, int salt) {
  Bytes bytes(count * size_of(type));
  for (std::size_t i = 0; i < count; ++i) {
    double value = number(type, op, 0, i, salt);
    for (int rank = 1; rank < world; ++rank) {
      const double other = number(type, op, rank, i, salt);
      if (op == ReduceOp::min) value = std::min(value, other);
      if (op == ReduceOp::max) value = std::max(value, other);
      if (op == ReduceOp::product) value *= other;
      if (op == ReduceOp::sum || op == ReduceOp::average) value += other;
    }
    if (op == ReduceOp::average)
      value = type == DataType::f64 ? value * (1.0 / world) : float(value) * (1.0f / float(world));
    store(type, value, bytes.data() + i * size_of(type));
  }
  return bytes;
}

// "" when equal, else the first element in which the two differ.
inline std::string difference(DataType type, const Bytes& got, const Bytes& expected) {
  if (got.size() != expected.size())
    return std::to_string(got.size()) + " bytes, not " + std::to_string(expected.size());
  const std::size_t element = size_of(type);
  for (std::size_t i = 0; i * element < got.size(); ++i) {
    const auto *a = got.data() + i * element, *b = expected.data() + i * element;
    if (std::memcmp(a, b, element) != 0)
      return "element " + std::to_string(i) + " of " + std::to_string(got.size() / element) +
             " is " + std::to_string(load(type, a)) + ", not " + std::to_string(load(type, b));
  }
  return "";
}

// Memory of a rank: registered or its own.
enum class Where { own, registered, mixed };  // mixed: odd ranks' is registered

class Storage {
 public:
  Storage(Group& group, std::size_t bytes, Where where) : bytes_(bytes) {
    if (where == Where::registered || (where == Where::mixed && group.rank() % 2 == 1))
      memory_ = group.allocate(bytes + 1);
    else
      memory_ =
          std::shared_ptr<std::byte>(new std::byte[bytes + 1], std::default_delete<std::byte[]>());
    std::memset(memory_.get(), 0x5a, bytes + 1);
  }
  Storage(Group& group, const Bytes& content, Where where) : Storage(group, content.size(), where) {
    if (bytes_) std::memcpy(memory_.get(), content.data(), bytes_);
  }
  ~Storage() { EXPECT_EQ(int(memory_.get()[bytes_]), 0x5a) << "written past the end"; }
  Storage(const Storage&) = delete;

  std::byte* data() const { return memory_.get(); }
  Bytes bytes() const { return Bytes(data(), data() + bytes_); }

 private:
  std::size_t bytes_;
  std::shared_ptr<std::byte> memory_;
};

}  // namespace echelon
