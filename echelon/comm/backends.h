// What each backend gives; those that are not built throw one sentence that says so.
#pragma once

#include <memory>

#include "echelon/comm/communicator.h"

namespace echelon {

// MPI_COMM_WORLD; initialises MPI where nobody has, and then finalises it at exit.
std::shared_ptr<Communicator> mpi_world(const CommOptions& options);

// On the current CUDA device. `control` carries the id that NCCL's ranks find each other by.
std::shared_ptr<Communicator> nccl_world(std::shared_ptr<Communicator> control,
                                         const CommOptions& options);

}  // namespace echelon
