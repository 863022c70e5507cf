#include "echelon/job/rules.h"

#include <fmt/format.h>

#include "echelon/base/error.h"

namespace echelon {
namespace {

using Request = const JobRequest&;
constexpr auto cannot_run = Breach::cannot_run;

bool cpu(Request r) { return r.options.train.device == DeviceKind::cpu; }
bool splits_model(Request r) {
  return r.options.parallel.pipeline > 1 || r.options.parallel.tensor > 1;
}
bool zero(Request r) { return r.options.parallel.zero > 0; }

std::vector<Rule<JobRequest>> all_rules() {
  return {
      {"arguments of a guest",
       cannot_run,
       [](Request r, int) {
         return !r.join.empty() &&
                (!r.name.empty() || !r.summary.empty() || r.trace_sync || r.trace_pipeline);
       },
       "--join makes a worker of another job, which has the run: leave out --name, --json and "
       "--trace",
       {}},
      {"a trace of exchanges in a mesh",
       cannot_run,
       [](Request r, int) { return r.trace_sync && splits_model(r); },
       "--trace sync is for ranks that each have the whole model: leave it out with "
       "parallel.pipeline and parallel.tensor",
       {}},
      {"a trace of no pipeline",
       cannot_run,
       [](Request r, int) { return r.trace_pipeline && r.options.parallel.pipeline == 1; },
       "--trace pipeline shows what ranks of a pipeline do: set parallel.pipeline",
       {}},
      {"a trace of a pipeline on GPUs",
       cannot_run,
       [](Request r, int) { return r.trace_pipeline && !cpu(r); },
       "--trace pipeline tells times by the host's clock, which is ahead of a GPU: leave it out, "
       "or set train.device=cpu",
       {}},
      {"a trace of exchanges with ZeRO",
       cannot_run,
       [](Request r, int) { return r.trace_sync && zero(r); },
       "--trace sync is for data parallel: leave it out with parallel.zero",
       {}},
      {"a trace of no exchanges",
       cannot_run,
       [](Request r, int ranks) {
         return r.trace_sync && (r.options.server.count > 0 || ranks == 1 || !cpu(r));
       },
       "--trace sync shows how ranks on CPUs reduce their gradients: start several with --nproc, "
       "without servers",
       {}},
      {"adapting and one algorithm",
       cannot_run,
       [](Request r, int) {
         return r.join.empty() && r.options.sync.adapt &&
                r.options.comm.algorithm != Algorithm::automatic;
       },
       "sync.adapt=true chooses among algorithms, and comm.algorithm names one: set "
       "sync.adapt=false or comm.algorithm=auto",
       {}},
      {"a graph over another backend",
       cannot_run,
       [](Request r, int ranks) {
         return r.join.empty() && r.options.train.graph == Switch::on && !cpu(r) && ranks > 1 &&
                r.options.parallel.pipeline == 1 && r.options.comm.backend != Backend::nccl;
       },
       "{value}",
       {},
       [](Request r, int) { return no_graph_over(name_of(r.options.comm.backend)); }},
  };
}

}  // namespace

const std::vector<Rule<JobRequest>>& job_rules() {
  static const std::vector<Rule<JobRequest>> rules = all_rules();
  return rules;
}

std::string sentence_of(const Rule<JobRequest>& rule, const JobRequest& request, int ranks) {
  return fmt::format(fmt::runtime(rule.sentence),
                     fmt::arg("value", rule.value ? rule.value(request, ranks) : std::string()));
}

void check_rules(const JobRequest& request, int ranks) {
  const auto check_own = [&] {
    for (const auto& rule : job_rules())
      if (rule.broken(request, ranks)) throw InvalidArgument(sentence_of(rule, request, ranks));
  };
  if (!request.join.empty()) return check_own();
  check_rules(static_cast<const PlanOptions&>(request.options), ranks);
  check_own();
}

}  // namespace echelon
