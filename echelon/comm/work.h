// An operation under way.
#pragma once

#include <chrono>
#include <memory>
#include <optional>

namespace echelon {

// When an operation ran, by the host's clock.
struct WorkSpan {
  std::chrono::steady_clock::time_point begin, end;
};

// What a backend keeps of an operation.
class Operand {
 public:
  virtual ~Operand() = default;
  virtual bool done() = 0;  // throws what went wrong
  virtual void wait() = 0;  // until done or its deadline; throws what went wrong
  // On a GPU: what the current stream is given next comes after the operation; the host goes on.
  virtual void follow() { wait(); }
  virtual int source() { return -1; }                    // of a receive: from whom
  virtual std::optional<WorkSpan> span() { return {}; }  // where it is known
};

// Handed out by every operation of a communicator. Its tensors must not be touched before wait()
// has returned; dropping it does not cancel the operation.
class Work {
 public:
  Work() = default;  // of nothing: done
  explicit Work(std::shared_ptr<Operand> operand) : operand_(std::move(operand)) {}

  bool done() const { return !operand_ || operand_->done(); }
  void wait() const {
    if (operand_) operand_->wait();
  }
  // The next kernels of the current stream use the result; on the CPU the same as wait(). What went
  // wrong comes out of a later done() or wait().
  void follow() const {
    if (operand_) operand_->follow();
  }
  // The rank that a finished receive came from.
  int source() const { return operand_ ? operand_->source() : -1; }
  // When a finished operation ran; nothing where the backend cannot tell.
  std::optional<WorkSpan> span() const {
    return operand_ ? operand_->span() : std::optional<WorkSpan>();
  }

 private:
  std::shared_ptr<Operand> operand_;
};

}  // namespace echelon
