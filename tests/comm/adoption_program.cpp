// comm_adoption: an MPI program that lends Echelon a communicator of half of its ranks. The suite
// passes on it, and afterwards MPI and the communicator work for the program as before.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstdio>

#include "echelon/comm/communicator.h"
#include "tests/comm/suite.h"

int main(int argc, char** argv) {
  at::set_num_threads(1);
  int level = 0, rank = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level);
  MPI_Comm lent = MPI_COMM_NULL;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &lent);

  std::vector<std::string> failures;
  try {
    echelon::CommOptions options;
    options.timeout = 60;
    const auto adopted = echelon::Communicator::adopt_mpi(int(MPI_Comm_c2f(lent)), options);
    failures = echelon::CommSuite(adopted, at::kCPU).run();
  } catch (const std::exception& error) {
    failures.push_back(error.what());
  }

  int initialised = 0, finalised = 0;
  MPI_Initialized(&initialised);
  MPI_Finalized(&finalised);
  if (!initialised || finalised) failures.push_back("MPI was ended with the communicator");
  if (failures.empty()) {
    int one = 1, members = 0, size = 0;
    MPI_Comm_size(lent, &size);
    MPI_Allreduce(&one, &members, 1, MPI_INT, MPI_SUM, lent);
    if (members != size) failures.push_back("the program's communicator no longer works");
    MPI_Comm_free(&lent);
  }
  for (const auto& failure : failures) std::fprintf(stderr, "%s\n", failure.c_str());
  if (!failures.empty()) MPI_Abort(MPI_COMM_WORLD, 1);
  MPI_Finalize();
  if (rank == 0) std::printf("mpi: the suite passed on an adopted communicator\n");
  return 0;
}
