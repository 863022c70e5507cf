// The entry points of the backends. A backend that is not built throws one sentence that says so.
#pragma once

#include <memory>

#include "echelon/comm/communicator.h"

namespace echelon {

// MPI_COMM_WORLD. Initialises MPI if the program has not, and then finalises it at exit.
std::shared_ptr<Communicator> mpi_world(const CommOptions& options);

// On the current CUDA device. `control` distributes the id by which NCCL's ranks find each other.
std::shared_ptr<Communicator> nccl_world(std::shared_ptr<Communicator> control,
                                         const CommOptions& options);

}  // namespace echelon
