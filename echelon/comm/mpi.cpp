// A communicator over the cluster's own MPI, through its non-blocking calls.
//
// MPI runs operations concurrently; ours promise to run in order. So an operation that touches
// memory of an earlier one under way waits for the earlier one first.
//
// MPI counts in int. Longer vectors are cut into chunks, and pieces go rank by rank (a broadcast
// from each, a reduce to each). Operations without such a form are refused.
//
// Ledger: how MPI moves the bytes is not visible. An entry holds the bytes that this rank passed to
// MPI to send or to reduce, counted once per call, with the algorithm `automatic` and the link
// `tcp`, whatever MPI used.
#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <mutex>
#include <numeric>
#include <utility>

#include "echelon/base/error.h"
#include "echelon/comm/arguments.h"
#include "echelon/comm/backends.h"
#include "echelon/comm/exchange_mpi.h"
#include "echelon/launch/environment.h"

namespace echelon {
namespace {

using namespace mpi;

constexpr std::size_t most = std::size_t{1} << 30;  // elements of one MPI call

// Under the mutex. Takes ownership of `comm`.
std::shared_ptr<Context> make_context(MPI_Comm comm, const CommOptions& options,
                                      std::shared_ptr<Ledger> ledger) {
  auto context = std::make_shared<Context>();
  context->comm = comm;
  context->options = options;
  context->ledger = std::move(ledger);
  must(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "set a communicator's error handler");
  must(MPI_Comm_rank(comm, &context->rank), "say this rank");
  must(MPI_Comm_size(comm, &context->size), "say how many ranks there are");
  return context;
}

class MpiCommunicator final : public Communicator {
 public:
  explicit MpiCommunicator(std::shared_ptr<Context> context) : context_(std::move(context)) {}

  // Completes dropped work that is under way; cancels a receive that nobody sent to.
  ~MpiCommunicator() override {
    std::vector<std::shared_ptr<Exchange>> left;
    {
      const std::lock_guard lock(library_.mutex);
      if (finalised()) return;
      for (const auto& exchange : library_.under_way) {
        if (exchange->context != context_ || exchange->ended) continue;
        if (exchange->operation == Operation::receive)
          for (auto& request : exchange->requests) MPI_Cancel(&request);
        left.push_back(exchange);
      }
    }
    for (const auto& exchange : left) {
      try {
        exchange->wait();
      } catch (const std::exception&) {
        // The caller could have waited for the error.
      }
    }
    const std::lock_guard lock(library_.mutex);
    library_.sweep();
    if (!context_->broken) MPI_Comm_free(&context_->comm);
  }

  const char* backend() const override { return "mpi"; }
  int rank() const override { return context_->rank; }
  int size() const override { return context_->size; }
  Ledger& ledger() override { return *context_->ledger; }

  Work all_reduce(at::Tensor tensor, ReduceOp op, const CommCall& call) override {
    const auto exchange = make(Operation::all_reduce, call, {}, tensor);
    exchange->type = reduced(data_type(tensor.scalar_type()), op);
    return start(exchange, tensor.nbytes(), [&] {
      exchange->out = Dense(tensor, Dense::both, scalar(exchange->type));
      average(*exchange, op, elements(tensor));
      chunks(elements(tensor), [&](std::size_t at, int count) {
        exchange->begin([&](MPI_Request* request) {
          return MPI_Iallreduce(MPI_IN_PLACE, place(exchange->out, at, exchange->type), count,
                                mpi_type(exchange->type), mpi_op(exchange->type, op), comm(),
                                request);
        });
      });
    });
  }

  Work reduce_scatter(at::Tensor output, at::Tensor input, ReduceOp op, const CommCall& call,
                      std::vector<std::size_t> counts) override {
    const auto exchange = make(Operation::reduce_scatter, call, input, output);
    exchange->type = reduced(same_type(output, input), op);
    expect_pieces("reduce_scatter", counts, input, size());
    expect_elements("reduce_scatter", "the output", output, counts[std::size_t(rank())]);
    return start(exchange, input.nbytes(), [&] {
      const DataType type = exchange->type;
      exchange->in = Dense(input, Dense::read, scalar(type));
      exchange->out = Dense(output, Dense::write, scalar(type));
      part(*exchange);
      average(*exchange, op, elements(output));
      if (elements(input) <= most) {
        exchange->counts.assign(counts.begin(), counts.end());
        exchange->begin([&](MPI_Request* request) {
          return MPI_Ireduce_scatter(exchange->in.data(), exchange->out.data(),
                                     exchange->counts.data(), mpi_type(type), mpi_op(type, op),
                                     comm(), request);
        });
        return;
      }
      each(counts, [&](int owner, std::size_t first, std::size_t at, int count) {
        exchange->begin([&](MPI_Request* request) {
          return MPI_Ireduce(place(exchange->in, first + at, type),
                             owner == rank() ? place(exchange->out, at, type) : nullptr, count,
                             mpi_type(type), mpi_op(type, op), owner, comm(), request);
        });
      });
    });
  }

  Work all_gather(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> counts) override {
    const auto exchange = make(Operation::all_gather, call, input, output);
    const DataType type = exchange->type = same_type(output, input);
    expect_pieces("all_gather", counts, output, size());
    expect_elements("all_gather", "the input", input, counts[std::size_t(rank())]);
    return start(exchange, input.nbytes(), [&] {
      exchange->in = Dense(input, Dense::read);
      exchange->out = Dense(output, Dense::write);
      part(*exchange);
      if (elements(output) <= most) {
        lay_out(counts, exchange->counts, exchange->offsets);
        exchange->begin([&](MPI_Request* request) {
          return MPI_Iallgatherv(exchange->in.data(), int(elements(input)), mpi_type(type),
                                 exchange->out.data(), exchange->counts.data(),
                                 exchange->offsets.data(), mpi_type(type), comm(), request);
        });
        return;
      }
      const auto mine = counts.begin() + rank();
      const std::size_t before = std::accumulate(counts.begin(), mine, std::size_t{0});
      if (input.numel())
        std::memcpy(place(exchange->out, before, type), exchange->in.data(), input.nbytes());
      each(counts, [&](int owner, std::size_t first, std::size_t at, int count) {
        exchange->begin([&](MPI_Request* request) {
          return MPI_Ibcast(place(exchange->out, first + at, type), count, mpi_type(type), owner,
                            comm(), request);
        });
      });
    });
  }

  Work broadcast(at::Tensor tensor, int root, const CommCall& call) override {
    expect_rank("broadcast", "root", root, size());
    const bool is_root = rank() == root;
    const auto exchange = is_root ? make(Operation::broadcast, call, tensor, {})
                                  : make(Operation::broadcast, call, {}, tensor);
    const DataType type = exchange->type = data_type(tensor.scalar_type());
    return start(exchange, is_root ? tensor.nbytes() : 0, [&] {
      exchange->out = Dense(tensor, is_root ? Dense::read : Dense::write);
      chunks(elements(tensor), [&](std::size_t at, int count) {
        exchange->begin([&](MPI_Request* request) {
          return MPI_Ibcast(place(exchange->out, at, type), count, mpi_type(type), root, comm(),
                            request);
        });
      });
    });
  }

  Work reduce(at::Tensor tensor, ReduceOp op, int root, const CommCall& call) override {
    expect_rank("reduce", "root", root, size());
    const bool is_root = rank() == root;
    const auto exchange = is_root ? make(Operation::reduce, call, {}, tensor)
                                  : make(Operation::reduce, call, tensor, {});
    exchange->type = reduced(data_type(tensor.scalar_type()), op);
    return start(exchange, tensor.nbytes(), [&] {
      const DataType type = exchange->type;
      exchange->out = Dense(tensor, is_root ? Dense::both : Dense::read, scalar(type));
      if (is_root) average(*exchange, op, elements(tensor));
      chunks(elements(tensor), [&](std::size_t at, int count) {
        void* const data = place(exchange->out, at, type);
        exchange->begin([&](MPI_Request* request) {
          return MPI_Ireduce(is_root ? MPI_IN_PLACE : data, is_root ? data : nullptr, count,
                             mpi_type(type), mpi_op(type, op), root, comm(), request);
        });
      });
    });
  }

  Work gather(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    expect_rank("gather", "root", root, size());
    const bool is_root = rank() == root;
    const std::size_t each_has = fits(elements(input), "gather");
    if (is_root) {
      same_type(output, input);
      expect_elements("gather", "the output", output, each_has * std::size_t(size()));
    }
    const auto exchange = make(Operation::gather, call, input, is_root ? output : at::Tensor());
    const DataType type = exchange->type = data_type(input.scalar_type());
    return start(exchange, input.nbytes(), [&] {
      exchange->in = Dense(input, Dense::read);
      if (is_root) exchange->out = Dense(output, Dense::write);
      part(*exchange);
      exchange->begin([&](MPI_Request* request) {
        return MPI_Igather(exchange->in.data(), int(each_has), mpi_type(type), exchange->out.data(),
                           int(each_has), mpi_type(type), root, comm(), request);
      });
    });
  }

  Work scatter(at::Tensor output, at::Tensor input, int root, const CommCall& call) override {
    expect_rank("scatter", "root", root, size());
    const bool is_root = rank() == root;
    const std::size_t each_has = fits(elements(output), "scatter");
    if (is_root) {
      same_type(output, input);
      expect_elements("scatter", "the input", input, each_has * std::size_t(size()));
    }
    const auto exchange = make(Operation::scatter, call, is_root ? input : at::Tensor(), output);
    const DataType type = exchange->type = data_type(output.scalar_type());
    return start(exchange, is_root ? input.nbytes() : 0, [&] {
      if (is_root) exchange->in = Dense(input, Dense::read);
      exchange->out = Dense(output, Dense::write);
      part(*exchange);
      exchange->begin([&](MPI_Request* request) {
        return MPI_Iscatter(exchange->in.data(), int(each_has), mpi_type(type),
                            exchange->out.data(), int(each_has), mpi_type(type), root, comm(),
                            request);
      });
    });
  }

  Work all_to_all(at::Tensor output, at::Tensor input, const CommCall& call,
                  std::vector<std::size_t> there, std::vector<std::size_t> back) override {
    const auto exchange = make(Operation::all_to_all, call, input, output);
    const DataType type = exchange->type = same_type(output, input);
    expect_pieces("all_to_all", there, input, size());
    expect_pieces("all_to_all", back, output, size());
    fits(std::max(elements(input), elements(output)), "all_to_all");
    return start(exchange, input.nbytes(), [&] {
      exchange->in = Dense(input, Dense::read);
      exchange->out = Dense(output, Dense::write);
      part(*exchange);
      lay_out(there, exchange->counts, exchange->offsets);
      lay_out(back, exchange->back, exchange->back_offsets);
      exchange->begin([&](MPI_Request* request) {
        return MPI_Ialltoallv(exchange->in.data(), exchange->counts.data(),
                              exchange->offsets.data(), mpi_type(type), exchange->out.data(),
                              exchange->back.data(), exchange->back_offsets.data(), mpi_type(type),
                              comm(), request);
      });
    });
  }

  Work send(at::Tensor tensor, int to, std::uint64_t tag, const CommCall& call) override {
    expect_rank("send", "the receiver", to, size());
    const auto exchange = make(Operation::send, call, tensor, {});
    const DataType type = exchange->type = data_type(tensor.scalar_type());
    return start(exchange, tensor.nbytes(), [&] {
      const int label = mpi_tag(tag);
      exchange->in = Dense(tensor, Dense::read);
      chunks(elements(tensor), [&](std::size_t at, int count) {
        exchange->begin([&](MPI_Request* request) {
          return MPI_Isend(place(exchange->in, at, type), count, mpi_type(type), to, label, comm(),
                           request);
        });
      });
    });
  }

  Work receive(at::Tensor tensor, int from, std::uint64_t tag, const CommCall& call) override {
    if (from != anyone) expect_rank("receive", "the sender", from, size());
    // The chunks after the first would have to come from the sender of the first.
    else
      fits(elements(tensor), "receive from anyone", most);
    const auto exchange = make(Operation::receive, call, {}, tensor);
    const DataType type = exchange->type = data_type(tensor.scalar_type());
    return start(exchange, 0, [&] {
      const int label = mpi_tag(tag);
      exchange->out = Dense(tensor, Dense::write);
      chunks(elements(tensor), [&](std::size_t at, int count) {
        exchange->counts.push_back(count);
        exchange->begin([&](MPI_Request* request) {
          return MPI_Irecv(place(exchange->out, at, type), count, mpi_type(type),
                           from == anyone ? MPI_ANY_SOURCE : from, label, comm(), request);
        });
      });
    });
  }

  Work barrier(const CommCall& call) override {
    const auto exchange = make(Operation::barrier, call, {}, {});
    return start(exchange, 0, [&] {
      exchange->begin([&](MPI_Request* request) { return MPI_Ibarrier(comm(), request); });
    });
  }

  // MPI_Comm_split blocks and has no deadline; after the barrier all ranks are about to call it.
  std::shared_ptr<Communicator> split(int colour, int key) override {
    barrier({.tag = "split"}).wait();
    const std::lock_guard lock(library_.mutex);
    MPI_Comm made = MPI_COMM_NULL;
    must(MPI_Comm_split(comm(), colour < 0 ? MPI_UNDEFINED : colour, key, &made),
         "split a communicator");
    if (made == MPI_COMM_NULL) return nullptr;
    return std::make_shared<MpiCommunicator>(
        make_context(made, context_->options, context_->ledger));
  }

 private:
  MPI_Comm comm() const { return context_->comm; }

  std::shared_ptr<Exchange> make(Operation operation, const CommCall& call, const at::Tensor& reads,
                                 const at::Tensor& writes) const {
    auto exchange = std::make_shared<Exchange>(context_, operation, call);
    exchange->memory = {Extent(reads, false), Extent(writes, true)};
    return exchange;
  }

  // `begin` starts the requests, under the mutex. Errors are reported by the work, except for
  // invalid arguments.
  template <class Begin>
  Work start(const std::shared_ptr<Exchange>& exchange, std::size_t bytes, Begin begin) {
    if (!exchange->message()) settle(*exchange);
    const std::lock_guard lock(library_.mutex);
    library_.sweep();
    if (context_->broken) {
      exchange->error = context_->broken;
      exchange->ended = true;
      return Work(exchange);
    }
    try {
      begin();
    } catch (const InvalidArgument&) {
      throw;
    } catch (...) {
      exchange->fail(std::current_exception());
      return Work(exchange);
    }
    context_->ledger->add(exchange->operation, exchange->tag, Algorithm::automatic, LinkKind::tcp,
                          bytes);
    library_.keep(exchange);
    return Work(exchange);
  }

  // Waits for operations on this communicator that must complete before `next`.
  void settle(const Exchange& next) {
    std::vector<std::shared_ptr<Exchange>> earlier;
    {
      const std::lock_guard lock(library_.mutex);
      for (const auto& exchange : library_.under_way)
        if (exchange->context == context_ && !exchange->ended && !exchange->message() &&
            conflict(*exchange, next))
          earlier.push_back(exchange);
    }
    for (const auto& exchange : earlier) {
      try {
        exchange->wait();
      } catch (const std::exception&) {
        // Its own work reports the error, and so does every later one.
      }
    }
  }

  static bool conflict(const Exchange& a, const Exchange& b) {
    for (const Extent& one : a.memory)
      for (const Extent& other : b.memory)
        if (one.conflicts(other)) return true;
    return false;
  }

  // MPI forbids that its input overlaps its output.
  static void part(Exchange& exchange) {
    if (exchange.memory[0].overlaps(exchange.memory[1])) exchange.in.detach();
  }

  // The type in which elements of `type` are reduced.
  DataType reduced(DataType type, ReduceOp op) const {
    check(type, op);
    const bool half = type == DataType::f16 || type == DataType::bf16;
    return half && context_->options.wire == Wire::fp32 ? DataType::f32 : type;
  }

  static at::ScalarType scalar(DataType type) {
    constexpr at::ScalarType types[] = {at::kDouble,   at::kFloat, at::kHalf,
                                        at::kBFloat16, at::kLong,  at::kInt,
                                        at::kChar,     at::kByte,  at::kBool};
    return types[std::size_t(type)];
  }

  static void average(Exchange& exchange, ReduceOp op, std::size_t count) {
    if (op == ReduceOp::average) exchange.averaged = count;
  }

  static void* place(const Dense& dense, std::size_t at, DataType type) {
    return dense.data() ? static_cast<std::byte*>(dense.data()) + at * size_of(type) : nullptr;
  }

  // Calls body(where, count) for every chunk, and once if there are no elements: an empty operation
  // is an operation, too.
  template <class Body>
  static void chunks(std::size_t count, Body body) {
    for (std::size_t at = 0; at == 0 || at < count; at += most)
      body(at, int(std::min(most, count - at)));
  }

  // Calls body(rank, where its piece begins, where in the piece, count) for every chunk of every
  // piece.
  template <class Body>
  static void each(const std::vector<std::size_t>& counts, Body body) {
    std::size_t first = 0;
    for (std::size_t owner = 0; owner < counts.size(); first += counts[owner++])
      chunks(counts[owner], [&](std::size_t at, int count) { body(int(owner), first, at, count); });
  }

  static void lay_out(const std::vector<std::size_t>& from, std::vector<int>& counts,
                      std::vector<int>& offsets) {
    counts.assign(from.begin(), from.end());
    offsets.assign(from.size(), 0);
    std::exclusive_scan(counts.begin(), counts.end(), offsets.begin(), 0);
  }

  static std::size_t fits(std::size_t count, const char* operation, std::size_t limit = INT_MAX) {
    if (count > limit)
      throw InvalidArgument(
          fmt::format("{} of {} elements: the MPI backend takes up to {} at once; send it in parts",
                      operation, count, limit));
    return count;
  }

  int mpi_tag(std::uint64_t tag) const {
    int* largest = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &largest, &found);
    const int limit = found ? *largest : 32767;
    if (tag > std::uint64_t(limit))
      throw InvalidArgument(
          fmt::format("tag {} is beyond the largest that this MPI has, {}", tag, limit));
    return int(tag);
  }

  std::shared_ptr<Context> context_;
  Library& library_ = Library::get();
};

std::shared_ptr<Communicator> duplicate(MPI_Comm comm, const CommOptions& options) {
  const std::lock_guard lock(Library::get().mutex);
  MPI_Comm made = MPI_COMM_NULL;
  must(MPI_Comm_dup(comm, &made), "duplicate a communicator");
  return std::make_shared<MpiCommunicator>(make_context(made, options, std::make_shared<Ledger>()));
}

}  // namespace

std::shared_ptr<Communicator> mpi_world(const CommOptions& options) {
  Library::get().initialise();
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (const auto environment = read_environment();
      environment.world > 1 && environment.world != size)
    throw InvalidArgument(fmt::format(
        "comm.backend=mpi: the environment ({}) speaks of {} ranks, MPI of {}; start the ranks with mpirun or srun",
        environment.source, environment.world, size));
  return duplicate(MPI_COMM_WORLD, options);
}

std::shared_ptr<Communicator> Communicator::adopt_mpi(int comm, const CommOptions& options) {
  int initialised = 0;
  MPI_Initialized(&initialised);
  if (!initialised || finalised())
    throw InvalidArgument(
        "an MPI communicator can be adopted between MPI_Init and MPI_Finalize alone");
  return duplicate(MPI_Comm_f2c(MPI_Fint(comm)), options);
}

}  // namespace echelon
