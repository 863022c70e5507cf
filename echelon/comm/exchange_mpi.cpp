#include "echelon/comm/exchange_mpi.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>

#include "echelon/base/error.h"
#include "echelon/collective/reduce.h"

namespace echelon::mpi {
namespace {

std::string text(int error) {
  char words[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(error, words, &length);
  return std::string(words, std::size_t(length));
}

// If a collective fails, Open MPI calls the error handler of MPI_COMM_WORLD, whatever communicator
// it ran on. That handler belongs to the program, so ours is installed only while a request
// completes.
class WorldErrors {
 public:
  WorldErrors() {
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before_);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  }
  ~WorldErrors() {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, before_);
    MPI_Errhandler_free(&before_);
  }
  WorldErrors(const WorldErrors&) = delete;
  WorldErrors& operator=(const WorldErrors&) = delete;

 private:
  MPI_Errhandler before_ = MPI_ERRHANDLER_NULL;
};

template <DataType type, ReduceOp op>
void combine(void* in, void* inout, int* count, MPI_Datatype*) {
  const void* const both[] = {in, inout};
  reduce(type, op, inout, both, 2, std::size_t(*count));
}

template <DataType type>
MPI_User_function* combine_by(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return combine<type, ReduceOp::min>;
    case ReduceOp::max:
      return combine<type, ReduceOp::max>;
    case ReduceOp::product:
      return combine<type, ReduceOp::product>;
    default:
      return combine<type, ReduceOp::sum>;
  }
}

MPI_User_function* combine_by(DataType type, ReduceOp op) {
  switch (type) {
    case DataType::f64:
      return combine_by<DataType::f64>(op);
    case DataType::f32:
      return combine_by<DataType::f32>(op);
    case DataType::f16:
      return combine_by<DataType::f16>(op);
    case DataType::bf16:
      return combine_by<DataType::bf16>(op);
    case DataType::i8:
      return combine_by<DataType::i8>(op);
    default:
      return combine_by<DataType::u8>(op);
  }
}

}  // namespace

void must(int result, const char* what) {
  if (result != MPI_SUCCESS) throw Error(fmt::format("MPI cannot {}: {}", what, text(result)));
}

bool finalised() {
  int flag = 0;
  MPI_Finalized(&flag);
  return flag != 0;
}

MPI_Datatype mpi_type(DataType type) {
  switch (type) {
    case DataType::f64:
      return MPI_DOUBLE;
    case DataType::f32:
      return MPI_FLOAT;
    case DataType::f16:
    case DataType::bf16:
      return MPI_UINT16_T;  // reduced by our own operation
    case DataType::i64:
      return MPI_INT64_T;
    case DataType::i32:
      return MPI_INT32_T;
    case DataType::i8:
      return MPI_INT8_T;
    case DataType::u8:
    case DataType::boolean:
      return MPI_UINT8_T;
  }
  return MPI_BYTE;
}

// MPI's own operation if it means the same as ours: bools are 0 and 1, so `or` is max and `and` is
// min. MPI has no 16-bit floats and does not define the minimum of a NaN, and Open MPI's sums of
// bytes saturate on processors with AVX. Under the mutex.
MPI_Op mpi_op(DataType type, ReduceOp op) {
  if (op == ReduceOp::average) op = ReduceOp::sum;  // scaled at the end
  const bool extreme = op == ReduceOp::min || op == ReduceOp::max;
  const bool half = type == DataType::f16 || type == DataType::bf16;
  const bool byte = type == DataType::i8 || type == DataType::u8;
  if (type == DataType::boolean)
    return op == ReduceOp::min || op == ReduceOp::product ? MPI_MIN : MPI_MAX;
  if (!half && !(is_floating(type) && extreme) && !(byte && op == ReduceOp::sum))
    return op == ReduceOp::min       ? MPI_MIN
           : op == ReduceOp::max     ? MPI_MAX
           : op == ReduceOp::product ? MPI_PROD
                                     : MPI_SUM;
  static auto& made = *new std::map<std::pair<DataType, ReduceOp>, MPI_Op>;
  const auto [found, is_new] = made.try_emplace({type, op}, MPI_OP_NULL);
  if (is_new) {
    must(MPI_Op_create(combine_by(type, op), 1, &found->second), "make an operation");
  }
  return found->second;
}

Deadline Exchange::by(const CommCall& call) const {
  return Deadline::in(call.timeout.count() > 0
                          ? call.timeout
                          : std::chrono::duration_cast<Deadline::Clock::duration>(
                                std::chrono::duration<double>(context->options.timeout)));
}

std::string Exchange::describe() const {
  return fmt::format("{} (MPI, rank {} of {}){}", name(operation), context->rank, context->size,
                     tag.empty() ? "" : fmt::format(", tag \"{}\"", tag));
}

void Exchange::cannot_start(int result) {
  requests.pop_back();
  throw Error(fmt::format("{} cannot start: {}", describe(), text(result)));
}

void Exchange::arrived(const MPI_Status& status) {
  if (operation != Operation::receive) return;
  int got = 0, cancelled = 0;
  MPI_Test_cancelled(&status, &cancelled);
  if (cancelled) return;  // because the communicator ended
  MPI_Get_count(&status, mpi_type(type), &got);
  from = status.MPI_SOURCE;
  if (got != counts[requests.size() - 1])
    throw InvalidArgument(fmt::format("{} got {} elements from rank {} where {} were asked for",
                                      describe(), got, from, counts[requests.size() - 1]));
}

void Exchange::refuse(int result) const {
  int kind = 0;
  MPI_Error_class(result, &kind);
  if (kind == MPI_ERR_TRUNCATE)
    throw InvalidArgument(
        fmt::format("{}: the ranks gave different sizes or types: {}", describe(), text(result)));
  throw Error(fmt::format("{} failed: {}", describe(), text(result)));
}

bool Exchange::advance() {
  try {
    while (!ended && !requests.empty()) {
      int flag = 0;
      MPI_Status status = {};
      int result = MPI_Request_get_status(requests.back(), &flag, &status);
      if (result == MPI_SUCCESS && !flag) return false;
      const WorldErrors returned;
      if (result == MPI_SUCCESS) result = MPI_Test(&requests.back(), &flag, &status);
      if (result != MPI_SUCCESS) refuse(result);
      arrived(status);
      requests.pop_back();
    }
    if (!ended) finish();
  } catch (...) {
    fail(std::current_exception());
  }
  return ended;
}

void Exchange::finish() {
  if (averaged) scale(type, out.data(), averaged, context->size);
  out.finish();
  in = out = Dense();
  ended = true;
}

void Exchange::fail(const std::exception_ptr& why) {
  error = why;
  ended = true;
  if (!context->broken) context->broken = why;
  Library::get().failed.push_back(shared_from_this());
}

// A collective is over when all earlier collectives are: operations run in order.
bool Exchange::over() {
  if (!advance()) return false;
  if (message() || error) return true;
  for (const auto& earlier : Library::get().under_way) {
    if (earlier.get() == this) break;
    if (earlier->context == context && !earlier->message() && !earlier->advance()) return false;
  }
  return true;
}

bool Exchange::done() {
  const std::lock_guard lock(Library::get().mutex);
  const bool is_over = over();
  if (!is_over && deadline.expired())
    fail(std::make_exception_ptr(Timeout(describe() + " reached its deadline")));
  if (error) std::rethrow_exception(error);
  return is_over;
}

// Yields first, then sleeps a little: with more ranks than cores, the rank we wait for needs our
// core.
void Exchange::wait() {
  for (int round = 0; !done(); ++round) {
    if (round < 2000)
      sched_yield();
    else
      std::this_thread::sleep_for(std::chrono::microseconds(std::min(round / 100, 200)));
  }
}

Library& Library::get() {
  static Library& library = *new Library;
  return library;
}

void Library::initialise() {
  const std::lock_guard lock(mutex);
  int flag = 0, level = 0;
  MPI_Initialized(&flag);
  if (flag) return;
  must(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level), "be initialised");
  if (level < MPI_THREAD_SERIALIZED)
    throw InvalidArgument("this MPI was built without threads, which Echelon needs");
  ours_ = true;
  std::atexit([] { get().finalise(); });
}

void Library::keep(std::shared_ptr<Exchange> exchange) {
  under_way.push_back(std::move(exchange));
  if (!thread_.joinable() && may_have_thread()) thread_ = std::thread([this] { run(); });
  more_.notify_one();
}

void Library::sweep() {
  under_way.remove_if([](const auto& exchange) { return exchange->advance(); });
}

// Without MPI_THREAD_MULTIPLE, calls of the embedding program could overlap ours.
bool Library::may_have_thread() const {
  int level = MPI_THREAD_SINGLE;
  MPI_Query_thread(&level);
  return ours_ || level == MPI_THREAD_MULTIPLE;
}

// Sleeps between sweeps: it serves operations that nobody waits for, while others need the core.
void Library::run() {
  int idle = 0;
  for (std::unique_lock lock(mutex);;) {
    more_.wait(lock, [this] { return stop_ || !under_way.empty(); });
    if (stop_) return;
    const std::size_t before = under_way.size();
    sweep();
    idle = under_way.size() < before ? 0 : std::min(idle + 1, 10);
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20 * (1 + idle)));
    lock.lock();
  }
}

// MPI_Finalize waits for all ranks. After an error they may never arrive: the process then ends
// without it, and mpirun ends the job.
void Library::finalise() {
  std::unique_lock lock(mutex);
  while (!under_way.empty() && failed.empty()) {
    sweep();
    lock.unlock();
    sched_yield();
    lock.lock();
    for (const auto& exchange : under_way)
      if (exchange->deadline.expired()) return;
  }
  if (!failed.empty() || finalised()) return;
  stop_ = true;
  more_.notify_all();
  lock.unlock();
  if (thread_.joinable()) thread_.join();
  MPI_Finalize();
}

}  // namespace echelon::mpi
