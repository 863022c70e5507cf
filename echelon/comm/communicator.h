// Ranks that exchange tensors.
//
//   auto world = Communicator::world();              // from launcher, torchrun, mpirun, srun, …
//   Work sum = world->all_reduce(gradients, ReduceOp::average, {.tag = "gradients"});
//   …                                                // compute meanwhile
//   sum.wait();
//
// Every operation is asynchronous and must be called by all ranks of the communicator in the same
// order, with the same shapes and types. Operations of one communicator run one after another in
// that order; different communicators (split) run beside each other. Send and receive are apart
// from both.
//
// Errors come out of wait() and done(): PeerLost when a rank is gone, Timeout at the deadline,
// InvalidArgument on all ranks where they called different things. After one, the communicator is
// broken and says so again.
//
// Three backends, one interface: native (CPU; tensors elsewhere are staged through the CPU), MPI
// (of the cluster's own library) and NCCL (on its own stream). What was not built says so in one
// line.
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
  std::string tag = {};  // what it is for: in the ledger, in traces, in errors
  std::chrono::steady_clock::duration timeout = {};  // 0: comm.timeout
  // Of an all-reduce: how, where the backend lets itself be told (native); all ranks the same.
  Algorithm algorithm = Algorithm::automatic;
  // The caller will wait at once: the operation may run in its thread, which saves handing it over.
  bool blocking = false;
};

class Communicator {
 public:
  static constexpr int anyone = -1;

  // All ranks of the job that the environment describes (see docs/clusters.md); alone: a world of
  // one.
  static std::shared_ptr<Communicator> world(const CommOptions& comm = {},
                                             const NetOptions& net = {});

  // A communicator of the embedding program. What it did not start it does not end: MPI stays
  // initialised, the handle stays valid. `comm` is MPI_Comm_c2f(communicator).
  static std::shared_ptr<Communicator> adopt_mpi(int comm, const CommOptions& options = {});
  static std::shared_ptr<Communicator> adopt_nccl(ncclComm* comm, const CommOptions& options = {});

  virtual ~Communicator() = default;
  virtual const char* backend() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // In place.
  virtual Work all_reduce(at::Tensor tensor, ReduceOp op, const CommCall& call = {}) = 0;
  // `input` is all pieces one after another, `output` this rank's. counts: elements by rank; empty:
  // even.
  virtual Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op,
                              const CommCall& call = {}, std::vector<std::size_t> counts = {}) = 0;
  virtual Work all_gather(at::Tensor output, at::Tensor input, const CommCall& call = {},
                          std::vector<std::size_t> counts = {}) = 0;
  virtual Work broadcast(at::Tensor tensor, int root, const CommCall& call = {}) = 0;
  virtual Work reduce(at::Tensor tensor, ReduceOp op, int root, const CommCall& call = {}) = 0;
  // `output` is used on the root alone, `input` of a scatter likewise.
  virtual Work gather(at::Tensor output, at::Tensor input, int root, const CommCall& call = {}) = 0;
  virtual Work scatter(at::Tensor output, at::Tensor input, int root,
                       const CommCall& call = {}) = 0;
  // counts: elements for each rank and from each; empty: even.
  virtual Work all_to_all(at::Tensor output, at::Tensor input, const CommCall& call = {},
                          std::vector<std::size_t> there = {},
                          std::vector<std::size_t> back = {}) = 0;
  virtual Work send(at::Tensor tensor, int to, std::uint64_t tag = 0,
                    const CommCall& call = {}) = 0;
  virtual Work receive(at::Tensor tensor, int from, std::uint64_t tag = 0,
                       const CommCall& call = {}) = 0;
  virtual Work barrier(const CommCall& call = {}) = 0;

  // Ranks of one colour become a communicator, ordered by key; nullptr for a negative colour.
  virtual std::shared_ptr<Communicator> split(int colour, int key) = 0;

  // A tensor in memory that the backend works on without a copy; uninitialised.
  virtual at::Tensor allocate(at::IntArrayRef sizes, at::ScalarType type);

  // Where this rank is: the same text for ranks of one host.
  virtual std::string host() const { return host_id(); }

  // Where small tensors that only this communicator sees should lie: NCCL takes none of the CPU's.
  virtual at::Device device() const { return at::kCPU; }

  // Whether a GPU's graph can record its operations.
  virtual bool recordable() const { return false; }

  // The slowest kind of link between its ranks as it was measured; zeros where nobody measures.
  virtual LinkFigures link() const { return {}; }
  // Whether an earlier job measured it.
  virtual bool link_is_reused() const { return false; }

  // Those that an all-reduce here can be told to use; none where the backend decides by itself.
  virtual std::vector<Algorithm> algorithms() const { return {}; }
  // What the cost model says that an all-reduce of so many bytes takes, in seconds; 0: no idea.
  virtual double predicted(Algorithm, std::size_t /*bytes*/) const { return 0; }
  // Links may change while a job runs: measures them again, for link(), predicted() and the choice
  // of algorithms. Collective.
  virtual void measure_links() {}

  // What this rank has sent, through this and all that were split from the same one.
  virtual Ledger& ledger() = 0;
  virtual std::string plan() const { return "{}\n"; }  // what was measured and chosen, as JSON
};

// The native backend on a group that exists already (the torch.distributed backend makes its own).
std::shared_ptr<Communicator> native_communicator(std::shared_ptr<Group> group);

// torch's type as ours. Throws InvalidArgument for one that no collective takes.
DataType data_type(at::ScalarType type);

}  // namespace echelon
