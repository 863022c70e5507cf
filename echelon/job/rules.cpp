#include "echelon/job/rules.h"

#include <fmt/format.h>

#include "echelon/base/error.h"
#include "echelon/job/resolve.h"

namespace echelon {
namespace {

using Request = const JobRequest&;
constexpr auto cannot_run = Breach::cannot_run;

bool cpu(Request r) { return r.options.train.device == DeviceKind::cpu; }
bool splits_model(Request r) {
  return r.options.parallel.pipeline > 1 || r.options.parallel.tensor > 1;
}
const DataOptions& data(Request r) { return r.options.data; }

// "data.text = review names a column"; empty if no option is about columns.
std::string columns_given(const DataOptions& data) {
  for (const auto& [key, value] :
       {std::pair{"data.text", &data.text}, std::pair{"data.pair", &data.pair},
        std::pair{"data.label", &data.label}, std::pair{"data.prompt", &data.prompt},
        std::pair{"data.answer", &data.answer}})
    if (!value->empty()) return fmt::format("{} = {} is a column", key, *value);
  return data.header ? std::string() : std::string("data.header = false is about the first line");
}

bool zero(Request r) { return r.options.parallel.zero > 0; }

std::vector<Rule<JobRequest>> all_rules() {
  return {
      {"arguments of a guest",
       cannot_run,
       [](Request r, int) {
         return !r.join.empty() && (!r.name.empty() || !r.summary.empty() || r.trace_sync ||
                                    r.trace_buckets || r.trace_pipeline);
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
      {"a table of no exchanges",
       cannot_run,
       [](Request r, int ranks) { return r.trace_buckets && (ranks == 1 || !cpu(r)); },
       "--trace buckets shows what ranks on CPUs exchange: start several with --nproc",
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
      {"a mixture and a source",
       cannot_run,
       [](Request r, int) { return !data(r).mix.empty() && data(r).source != "stdlib"; },
       "data.mix names all sources, and data.source = {value} is one more: set "
       "data.source=stdlib, and give it a weight in data.mix",
       {},
       [](Request r, int) { return data(r).source; }},
      {"a mixture and one source of validation data",
       cannot_run,
       [](Request r, int) { return !data(r).mix.empty() && !data(r).validation_source.empty(); },
       "data.mix validates on a share of each source: leave data.validation_source out",
       {}},
      {"files of random tokens",
       cannot_run,
       [](Request r, int) {
         return kind_of(data(r)) == SourceKind::random &&
                !(data(r).tokenizer + data(r).validation_source).empty();
       },
       "data.source=random has neither text nor validation data: leave data.tokenizer and "
       "data.validation_source out, or give another data.source",
       {}},
      {"columns of no records",
       cannot_run,
       [](Request r, int) {
         const auto kind = kind_of(data(r));
         return kind != SourceKind::records && kind != SourceKind::mix &&
                !columns_given(data(r)).empty();
       },
       "{value} of records, and data.source is no .tsv, .csv or .jsonl file: give such a file, or "
       "leave it out",
       {},
       [](Request r, int) { return columns_given(data(r)); }},
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
