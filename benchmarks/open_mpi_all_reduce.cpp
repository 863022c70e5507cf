// Measures Open MPI's all-reduce as `echelon bench collectives` measures Echelon's: each repetition
// begins at a barrier, and its time is that of rank 0. Prints lines of "bytes median_us p99_us".
//
//   mpirun -np 2 open_mpi_all_reduce SECONDS BYTES…
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const double seconds = std::atof(argv[1]);
  for (int i = 2; i < argc; ++i) {
    const std::size_t bytes = std::strtoull(argv[i], nullptr, 10);
    std::vector<float> values(bytes / sizeof(float));
    const auto timed = [&] {
      MPI_Barrier(MPI_COMM_WORLD);
      const double start = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, values.data(), int(values.size()), MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
      return MPI_Wtime() - start;
    };
    double first = 0;
    for (int warm = 0; warm < 5; ++warm) first = timed();
    long repeats = std::clamp(long(seconds / std::max(first, 1e-7)), 10L, 20000L);
    MPI_Bcast(&repeats, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    std::vector<double> times;
    for (long k = 0; k < repeats; ++k) times.push_back(timed());
    std::sort(times.begin(), times.end());
    if (rank == 0)
      std::printf("%zu %.3f %.3f\n", bytes, times[times.size() / 2] * 1e6,
                  times[std::size_t(0.99 * double(times.size()))] * 1e6);
  }
  MPI_Finalize();
}
