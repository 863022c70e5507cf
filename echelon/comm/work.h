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

// A backend's state of an operation.
class Operand {
 public:
  virtual ~Operand() = default;
  virtual bool done() = 0;  // throws the operation's error
  virtual void wait() = 0;  // until done or its deadline; throws the operation's error
  // On a GPU, orders the next work of the current stream after the operation; the host does not
  // wait.
  virtual void follow() { wait(); }
  virtual int source() { return -1; }                    // sender of a receive
  virtual std::optional<WorkSpan> span() { return {}; }  // if known
};

// Returned by every operation of a communicator. Its tensors must not be touched before wait() has
// returned. Dropping it does not cancel the operation.
class Work {
 public:
  Work() = default;  // no operation: done
  explicit Work(std::shared_ptr<Operand> operand) : operand_(std::move(operand)) {}

  bool done() const { return !operand_ || operand_->done(); }
  void wait() const {
    if (operand_) operand_->wait();
  }
  // The next kernels of the current stream can use the result; on the CPU the same as wait(). A
  // later done() or wait() reports errors.
  void follow() const {
    if (operand_) operand_->follow();
  }
  // The sender of a finished receive.
  int source() const { return operand_ ? operand_->source() : -1; }
  // When a finished operation ran; nothing if the backend does not know.
  std::optional<WorkSpan> span() const {
    return operand_ ? operand_->span() : std::optional<WorkSpan>();
  }
  // Whether both are the same operation.
  bool operator==(const Work&) const = default;

 private:
  std::shared_ptr<Operand> operand_;
};

}  // namespace echelon
