#include "echelon/step/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace echelon {
namespace {

CommCall call_of(const Parcel& parcel) {
  return {.tag = tag_of(parcel), .algorithm = parcel.algorithm, .blocking = parcel.blocking};
}

class PlainExchange final : public Exchange {
 protected:
  Work begin_sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel) override {
    return ranks.all_reduce(slice, parcel.op, call_of(parcel));
  }
  Work begin_sum_to_owners(Communicator& ranks, const at::Tensor& own, const at::Tensor& all,
                           const Parcel& parcel) override {
    return ranks.reduce_scatter(own, all, parcel.op, call_of(parcel));
  }
  Work begin_gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
                    const Parcel& parcel) override {
    return ranks.all_gather(all, own, call_of(parcel));
  }
  Work begin_send(Communicator& ranks, const at::Tensor& slice, int to, std::uint64_t tag,
                  const Parcel& parcel) override {
    return ranks.send(slice, to, tag, call_of(parcel));
  }
  Work begin_receive(Communicator& ranks, const at::Tensor& slice, int from, std::uint64_t tag,
                     const Parcel& parcel) override {
    return ranks.receive(slice, from, tag, call_of(parcel));
  }
  void encode_push(const at::Tensor& slice, const Parcel&,
                   const std::function<void(const at::Tensor&)>& deliver) override {
    deliver(slice);
  }
};

double seconds(WorkClock::Clock::duration time) {
  return std::chrono::duration<double>(time).count();
}

// The seconds of a span that lie within any of the others, which may overlap.
double overlap(const WorkSpan& span, const std::vector<WorkSpan>& others) {
  std::vector<WorkSpan> inside;
  for (const auto& other : others) {
    const WorkSpan both{std::max(span.begin, other.begin), std::min(span.end, other.end)};
    if (both.begin < both.end) inside.push_back(both);
  }
  std::sort(inside.begin(), inside.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  WorkClock::Clock::duration total{};
  auto counted = span.begin;
  for (const auto& one : inside) {
    total += std::max(one.end, counted) - std::max(one.begin, counted);
    counted = std::max(counted, one.end);
  }
  return seconds(total);
}

}  // namespace

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::gradients:
      return "gradients";
    case Purpose::parameters:
      return "parameters";
    case Purpose::tied_gradients:
      return "tied gradients";
    case Purpose::activations:
      return "activations";
    case Purpose::push:
      return "push";
    case Purpose::pull:
      return "pull";
    case Purpose::loss:
      return "loss";
  }
  return "";
}

std::string tag_of(const Parcel& parcel) {
  const char* purpose = to_string(parcel.purpose);
  return parcel.told_apart ? fmt::format("{} {}", purpose, parcel.part) : purpose;
}

std::string_view without_part(std::string_view tag) {
  const auto last = tag.find_last_not_of("0123456789");
  const bool has_part = last != tag.npos && last + 1 < tag.size() && tag[last] == ' ';
  return has_part ? tag.substr(0, last) : tag;
}

// A blocking call may do all of its work before it returns.
template <class Begin>
Work Exchange::counted(Operation operation, const at::Tensor& slice, const Parcel& parcel,
                       const Begin& begin) {
  const bool blocks = parcel.blocking && slice.is_cpu();
  const bool records = recording_ && slice.is_cpu();
  if (!blocks && !records) return begin(parcel);
  Parcel sent = parcel;
  sent.told_apart = parcel.told_apart || (records && parcel.part >= 0);
  const auto start = WorkClock::Clock::now();
  Work work = begin(sent);
  const WorkSpan here{start, WorkClock::Clock::now()};
  if (blocks) clock_.waited_since(start);
  if (!records) return work;
  Exchanged about{.purpose = parcel.purpose,
                  .part = parcel.part,
                  .operation = operation,
                  .bytes = slice.nbytes(),
                  .asked = start,
                  .span = here};
  if (blocks) add_wait(here);
  add({about, work});
  return work;
}

Work Exchange::sum(Communicator& ranks, const at::Tensor& slice, const Parcel& parcel) {
  return counted(Operation::all_reduce, slice, parcel,
                 [&](const Parcel& sent) { return begin_sum(ranks, slice, sent); });
}

Work Exchange::sum_to_owners(Communicator& ranks, const at::Tensor& own, const at::Tensor& all,
                             const Parcel& parcel) {
  return counted(Operation::reduce_scatter, all, parcel,
                 [&](const Parcel& sent) { return begin_sum_to_owners(ranks, own, all, sent); });
}

Work Exchange::gather(Communicator& ranks, const at::Tensor& all, const at::Tensor& own,
                      const Parcel& parcel) {
  return counted(Operation::all_gather, all, parcel,
                 [&](const Parcel& sent) { return begin_gather(ranks, all, own, sent); });
}

Work Exchange::send(Communicator& ranks, const at::Tensor& slice, int to, std::uint64_t tag,
                    const Parcel& parcel) {
  return counted(Operation::send, slice, parcel,
                 [&](const Parcel& sent) { return begin_send(ranks, slice, to, tag, sent); });
}

Work Exchange::receive(Communicator& ranks, const at::Tensor& slice, int from, std::uint64_t tag,
                       const Parcel& parcel) {
  return counted(Operation::receive, slice, parcel,
                 [&](const Parcel& sent) { return begin_receive(ranks, slice, from, tag, sent); });
}

void Exchange::push(const at::Tensor& slice, const Parcel& parcel,
                    const std::function<void(const at::Tensor&)>& deliver) {
  timed(slice, parcel, Operation::send, [&] { encode_push(slice, parcel, deliver); });
}

void Exchange::pull(const at::Tensor& slice, const Parcel& parcel,
                    const std::function<void(const at::Tensor&)>& fetch) {
  timed(slice, parcel, Operation::receive, [&] { fetch(slice); });
}

// For a call that completes its exchange before it returns.
void Exchange::timed(const at::Tensor& slice, const Parcel& parcel, Operation operation,
                     const std::function<void()>& call) {
  const auto start = WorkClock::Clock::now();
  call();
  if (!recording_) return;
  const WorkSpan span{start, WorkClock::Clock::now()};
  add_wait(span);
  add({{.purpose = parcel.purpose,
        .part = parcel.part,
        .operation = operation,
        .here = parcel.here,
        .bytes = slice.nbytes(),
        .asked = start,
        .span = span},
       Work()});
}

void Exchange::add(Record record) {
  const std::lock_guard lock(mutex_);
  records_.push_back(std::move(record));
}

void Exchange::add_wait(WorkSpan span) {
  const std::lock_guard lock(mutex_);
  waits_.push_back(span);
}

void Exchange::wait(const Work& work, at::Device device) {
  const auto start = WorkClock::Clock::now();
  clock_.wait(work, device);
  if (!recording_ || device.is_cuda() || work == Work()) return;
  add_wait({start, WorkClock::Clock::now()});
  const std::lock_guard lock(mutex_);
  for (auto& record : records_) {
    if (!(record.work == work)) continue;
    if (const auto span = work.span()) record.about.span = *span;
    record.work = Work();
  }
}

void Exchange::begin_step() {
  clock_.reset();
  if (recording_ && ledger_) sent_before_ = ledger_->entries();
  const std::lock_guard lock(mutex_);
  records_.clear();
  waits_.clear();
}

std::vector<Exchanged> Exchange::recorded() const {
  const std::lock_guard lock(mutex_);
  std::vector<Exchanged> all;
  for (const auto& record : records_) {
    all.push_back(record.about);
    if (const auto span = record.work.span()) all.back().span = *span;
    all.back().waited = overlap(all.back().span, waits_);
  }
  return all;
}

std::vector<Ledger::Entry> Exchange::sent() const {
  if (!recording_ || !ledger_) return {};
  return ledger_->since(sent_before_);
}

std::shared_ptr<Exchange> plain_exchange() { return std::make_shared<PlainExchange>(); }

}  // namespace echelon
