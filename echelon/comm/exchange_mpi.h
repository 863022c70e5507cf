// MPI operations under way, the basis of the MPI communicator (mpi.cpp). Needs mpi.h, which users
// of Echelon need not have: private to this component.
//
// An operation is one or more MPI requests. They start when the operation is issued, because MPI
// matches collectives by order. From then on they are polled by any thread that waits and by one
// thread of the process (Library). MPI makes progress only while it is called, so without that
// thread an operation that nobody waits for would stall while the program computes. If the
// embedding program initialised MPI with less than MPI_THREAD_MULTIPLE, that thread does not exist:
// MPI is then called only in our callers' threads, and an operation that nobody waits for
// progresses while another one is waited for.
//
// All MPI calls are made under one mutex of the process, so MPI_THREAD_SERIALIZED is enough.
#pragma once

#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "echelon/base/deadline.h"
#include "echelon/collective/call.h"
#include "echelon/comm/communicator.h"
#include "echelon/comm/dense.h"

namespace echelon::mpi {

// Throws Error with MPI's reason: "MPI cannot split a communicator: …".
void must(int result, const char* what);
bool finalised();

MPI_Datatype mpi_type(DataType type);
MPI_Op mpi_op(DataType type, ReduceOp op);  // under Library::mutex; an average is a sum

// State that a communicator shares with its operations under way.
struct Context {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  CommOptions options;
  std::shared_ptr<Ledger> ledger;  // shared by all communicators split from one
  std::exception_ptr broken;       // under Library::mutex
};

// The bytes of memory from the first to the last element of a tensor.
struct Extent {
  const std::byte *begin = nullptr, *end = nullptr;
  bool written = false;

  Extent(const at::Tensor& tensor, bool writes) : written(writes) {
    if (!tensor.defined() || tensor.numel() == 0) return;
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    begin = static_cast<const std::byte*>(tensor.const_data_ptr());
    end = begin + (std::size_t(last) + 1) * tensor.element_size();
  }
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
  bool conflicts(const Extent& other) const {
    return (written || other.written) && overlaps(other);
  }
};

// An operation under way. Once it is started, Library::mutex guards all its members.
class Exchange final : public Operand, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Context> of, Operation what, const CommCall& call)
      : context(std::move(of)), operation(what), tag(call.tag), deadline(by(call)) {}

  bool done() override;
  void wait() override;
  int source() override { return from; }

  bool advance();  // whether it has ended, successfully or not
  void fail(const std::exception_ptr& why);
  std::string describe() const;  // for errors
  // One MPI call that creates a request.
  template <class Begin>
  void begin(Begin call) {
    requests.push_back(MPI_REQUEST_NULL);
    if (const int result = call(&requests.back()); result != MPI_SUCCESS) cannot_start(result);
  }
  bool message() const { return operation == Operation::send || operation == Operation::receive; }

  std::shared_ptr<Context> context;
  Operation operation;
  std::string tag;
  Deadline deadline;
  DataType type = DataType::u8;
  Dense in, out;
  std::vector<Extent> memory;
  std::vector<int> counts, offsets, back, back_offsets;  // MPI reads these until the end
  std::size_t averaged = 0;                              // elements of `out` to divide at the end
  int from = -1;
  std::vector<MPI_Request> requests;
  bool ended = false;
  std::exception_ptr error;

 private:
  Deadline by(const CommCall& call) const;
  bool over();
  [[noreturn]] void cannot_start(int result);
  [[noreturn]] void refuse(int result) const;
  void arrived(const MPI_Status& status);
  void finish();
};

// MPI in this process. Never destroyed, because MPI may use what it holds until the process ends.
class Library {
 public:
  static Library& get();

  std::mutex mutex;                                // guards every MPI call and everything below
  std::list<std::shared_ptr<Exchange>> under_way;  // kept so that dropped work continues
  std::vector<std::shared_ptr<Exchange>> failed;   // MPI may still write to their memory

  // MPI_COMM_WORLD is usable when this returns. If MPI is initialised here, it is finalised at
  // exit.
  void initialise();
  // Call with the mutex held, after an operation was started.
  void keep(std::shared_ptr<Exchange> exchange);
  // Call with the mutex held: polls all operations under way.
  void sweep();

 private:
  bool may_have_thread() const;
  void run();
  void finalise();

  bool ours_ = false, stop_ = false;
  std::condition_variable more_;
  std::thread thread_;
};

}  // namespace echelon::mpi
