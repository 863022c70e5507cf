// An operation under way.
#pragma once

#include <functional>
#include <memory>

namespace echelon {

// What a backend keeps of an operation.
class Operand {
 public:
  virtual ~Operand() = default;
  virtual bool done() = 0;             // throws what went wrong
  virtual void wait() = 0;             // until done or its deadline; throws what went wrong
  virtual int source() { return -1; }  // of a receive: from whom
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
  // The rank that a finished receive came from.
  int source() const { return operand_ ? operand_->source() : -1; }

 private:
  std::shared_ptr<Operand> operand_;
};

}  // namespace echelon
