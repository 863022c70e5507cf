#include "echelon/base/error.h"
#include "echelon/comm/backends.h"

namespace echelon {
namespace {
constexpr const char* missing = "this build has no MPI: install libopenmpi-dev and build again";
}

std::shared_ptr<Communicator> mpi_world(const CommOptions&) { throw InvalidArgument(missing); }

std::shared_ptr<Communicator> Communicator::adopt_mpi(int, const CommOptions&) {
  throw InvalidArgument(missing);
}

}  // namespace echelon
