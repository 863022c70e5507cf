#include "echelon/base/error.h"
#include "echelon/comm/backends.h"

namespace echelon {
namespace {
constexpr const char* missing = "this build has no NCCL: it comes with a CUDA build of torch";
}

std::shared_ptr<Communicator> nccl_world(std::shared_ptr<Communicator>, const CommOptions&) {
  throw InvalidArgument(missing);
}

std::shared_ptr<Communicator> Communicator::adopt_nccl(ncclComm*, const CommOptions&) {
  throw InvalidArgument(missing);
}

}  // namespace echelon
