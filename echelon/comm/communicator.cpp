#include "echelon/comm/communicator.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/base/options_section.h"
#include "echelon/collective/group.h"
#include "echelon/comm/backends.h"
#include "echelon/launch/environment.h"

namespace echelon {

std::shared_ptr<Communicator> Communicator::world(const CommOptions& comm, const NetOptions& net) {
  check_section("comm", comm);
  check_section("net", net);
  if (comm.backend == Backend::mpi) return mpi_world(comm);
  auto group = Group::world(Endpoint::join(read_environment(), net), comm);
  if (comm.backend == Backend::nccl) return nccl_world(native_communicator(std::move(group)), comm);
  return native_communicator(std::move(group));
}

at::Tensor Communicator::allocate(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type));
}

DataType data_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return DataType::f64;
    case at::kFloat:
      return DataType::f32;
    case at::kHalf:
      return DataType::f16;
    case at::kBFloat16:
      return DataType::bf16;
    case at::kLong:
      return DataType::i64;
    case at::kInt:
      return DataType::i32;
    case at::kChar:
      return DataType::i8;
    case at::kByte:
      return DataType::u8;
    case at::kBool:
      return DataType::boolean;
    default:
      throw InvalidArgument(fmt::format(
          "tensors of type {} cannot be exchanged; allowed: double, float, half, bfloat16, long, int, char, byte, bool",
          at::toString(type)));
  }
}

}  // namespace echelon
