// Operations of MPI under way: what the MPI communicator (mpi.cpp) is made of. Needs mpi.h, which
// users of Echelon need not have: private to this component.
//
// An operation is one or more requests of MPI. They are started when it is issued, since MPI
// matches collectives by their order, and looked at from then on: by whoever waits, and by one
// thread of the process (Library). MPI gets on only while it is called, so without that thread an
// operation that nobody waits for would stand still while the program computes. Where MPI was
// initialised by the embedding program for less than MPI_THREAD_MULTIPLE there is no such thread:
// MPI is then called in the threads of our callers alone, and what is not waited for moves when
// something else is.
//
// All calls of MPI are made under one mutex of the process: MPI_THREAD_SERIALIZED is enough.
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

// What a communicator and the operations under way on it share.
struct Context {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  CommOptions options;
  std::shared_ptr<Ledger> ledger;  // that of all that were split from one
  std::exception_ptr broken;       // under Library::mutex
};

// Bytes of memory from the first to the last of a tensor.
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

// An operation under way. All its members are guarded by Library::mutex once it was started.
class Exchange final : public Operand, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(std::shared_ptr<Context> of, Operation what, const CommCall& call)
      : context(std::move(of)), operation(what), tag(call.tag), deadline(by(call)) {}

  bool done() override;
  void wait() override;
  int source() override { return from; }

  bool advance();  // whether it has ended, well or not
  void fail(const std::exception_ptr& why);
  std::string describe() const;  // for errors
  // One call of MPI that makes a request.
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
  std::vector<int> counts, offsets, back, back_offsets;  // MPI reads them until the end
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

// MPI in this process. Never destroyed: MPI may be at work on what it holds until the end.
class Library {
 public:
  static Library& get();

  std::mutex mutex;                                // every call of MPI, and all below
  std::list<std::shared_ptr<Exchange>> under_way;  // held so that a dropped work goes on
  std::vector<std::shared_ptr<Exchange>> failed;   // MPI may still write to their memory

  // MPI_COMM_WORLD may be used when this returns. What is initialised here is finalised at exit.
  void initialise();
  // With the mutex, after an operation was started.
  void keep(std::shared_ptr<Exchange> exchange);
  // With the mutex: looks at all that is under way.
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
