// Ranks that exchange tensors.
//
//   auto world = Communicator::world();              // from launcher, torchrun, mpirun, srun, …
//   Work sum = world->all_reduce(gradients, ReduceOp::average, {.tag = "gradients"});
//   …                                                // compute meanwhile
//   sum.wait();
//
// Every operation is asynchronous. All ranks of the communicator must call it in the same order,
// with the same shapes and types. Operations of one communicator run one after another in that
// order; different communicators (split) run concurrently. Send and receive are independent of
// both.
//
// wait() and done() report errors: PeerLost if a rank is gone, Timeout at the deadline,
// InvalidArgument on all ranks if they called different operations. After an error the communicator
// is broken, and later operations report it again.
//
// Three backends share one interface: native (CPU; tensors elsewhere are staged through the CPU),
// MPI (the cluster's own library) and NCCL (on its own stream). A backend that is not built says so
// in one line.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "echelon/collective/cost.h"
#include "echelon/collective/ledger.h"
#include "echelon/collective/options.h"
#include "echelon/collective/type.h"
#include "echelon/comm/work.h"
#include "echelon/net/host.h"
#include "echelon/net/options.h"

struct ncclComm;

namespace echelon {

class Group;

struct CommCall {
  std::string tag = {};  // its purpose: for the ledger, traces and errors
  std::chrono::steady_clock::duration timeout = {};  // 0: comm.timeout
  // The algorithm of an all-reduce, if the backend accepts a choice (native); the same on all
  // ranks.
  Algorithm algorithm = Algorithm::automatic;
  // The caller will wait immediately: the operation may run in its thread, which saves a hand-over.
  bool blocking = false;
};

class Communicator {
 public:
  static constexpr int anyone = -1;

  // All ranks of the job that the environment describes (see docs/clusters.md); without one, a
  // world of size one.
  static std::shared_ptr<Communicator> world(const CommOptions& comm = {},
                                             const NetOptions& net = {});

  // Adopts a communicator of the embedding program. Echelon does not end what it did not start: MPI
  // stays initialised and the handle stays valid. `comm` is MPI_Comm_c2f(communicator).
  static std::shared_ptr<Communicator> adopt_mpi(int comm, const CommOptions& options = {});
  static std::shared_ptr<Communicator> adopt_nccl(ncclComm* comm, const CommOptions& options = {});

  virtual ~Communicator() = default;
  virtual const char* backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  virtual Work all_reduce(at::Tensor tensor, ReduceOp op, const CommCall& call = {}) = 0;
  // `input` has the pieces of all ranks one after another; `output` is this rank's piece. counts:
  // elements by rank; empty: even.
  virtual Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op,
                              const CommCall& call = {}, std::vector<std::size_t> counts = {}) = 0;
  virtual Work all_gather(at::Tensor output, at::Tensor input, const CommCall& call = {},
                          std::vector<std::size_t> counts = {}) = 0;
  virtual Work broadcast(at::Tensor tensor, int root, const CommCall& call = {}) = 0;
  virtual Work reduce(at::Tensor tensor, ReduceOp op, int root, const CommCall& call = {}) = 0;
  // `output` of a gather and `input` of a scatter are used only on the root.
  virtual Work gather(at::Tensor output, at::Tensor input, int root, const CommCall& call = {}) = 0;
  virtual Work scatter(at::Tensor output, at::Tensor input, int root,
                       const CommCall& call = {}) = 0;
  // there, back: elements sent to and received from each rank; empty: even.
  virtual Work all_to_all(at::Tensor output, at::Tensor input, const CommCall& call = {},
                          std::vector<std::size_t> there = {},
                          std::vector<std::size_t> back = {}) = 0;
  virtual Work send(at::Tensor tensor, int to, std::uint64_t tag = 0,
                    const CommCall& call = {}) = 0;
  virtual Work receive(at::Tensor tensor, int from, std::uint64_t tag = 0,
                       const CommCall& call = {}) = 0;
  virtual Work barrier(const CommCall& call = {}) = 0;

  // Ranks of one colour form a communicator, ordered by key; nullptr for a negative colour.
  virtual std::shared_ptr<Communicator> split(int colour, int key) = 0;

  // An uninitialised tensor in memory that the backend uses without a copy.
  virtual at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type);

  // An identifier of this rank's host, equal for all ranks of one host.
  virtual std::string host() const { return host_id(); }

  // The device for small tensors that only this communicator sees: NCCL accepts no CPU tensors.
  virtual at::Device device() const { return at::kCPU; }

  // Whether a GPU graph can capture its operations.
  virtual bool recordable() const { return false; }

  // The measured slowest kind of link between its ranks; zeros if the backend does not measure.
  virtual LinkFigures link() const { return {}; }
  // Whether the measurement comes from an earlier job.
  virtual bool link_is_reused() const { return false; }

  // The algorithms that an all-reduce accepts; empty if the backend decides by itself.
  virtual std::vector<Algorithm> algorithms() const { return {}; }
  // The time of an operation on this many bytes (of the whole vector) in memory from allocate(),
  // according to the cost model, in seconds; 0: unknown.
  virtual double predicted(Operation, Algorithm, std::size_t /*bytes*/) const { return 0; }
  // Measures the links again, for link(), predicted() and the choice of algorithms; they may change
  // while a job runs. Collective.
  virtual void measure_links() {}

  // What this rank has sent, through this communicator and all others split from the same one.
  virtual Ledger& ledger() = 0;
  virtual std::string plan() const { return "{}\n"; }  // measurements and choices, as JSON
};

// The native backend on an existing group (the torch.distributed backend creates its own).
std::shared_ptr<Communicator> native_communicator(std::shared_ptr<Group> group);

// Converts torch's type to ours. Throws InvalidArgument for a type that no collective supports.
DataType data_type(at::ScalarType type);

}  // namespace echelon
