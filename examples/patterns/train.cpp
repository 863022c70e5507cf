#include "patterns/train.h"

#include <ATen/Context.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <echelon/base/error.h>
#include <echelon/comm/communicator.h>
#include <echelon/train/trainer.h>

#include <cstdio>
#include <string>
#include <string_view>

#include "patterns/patterns.h"

namespace {

constexpr std::int64_t unseen_images = 1024;

class Classification : public echelon::Layer {
 public:
  at::Tensor forward(const at::Tensor& scores, echelon::Pass& pass) override {
    if (!pass.target.defined()) return scores;
    if (!pass.training) return scores.argmax(1).eq(pass.target).mean(at::kDouble);
    const at::Tensor target = pass.target.unsqueeze(1);
    const auto wide = scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    const at::Tensor log_probability = at::log_softmax(scores, 1, wide);
    at::Tensor grad = log_probability.exp();
    grad.scatter_add_(1, target, at::full({}, -1, grad.options()).expand_as(target));
    if (pass.keeps()) pass.saved = {scores, grad};
    return log_probability.gather(1, target).mean(at::kDouble).neg();
  }

  // The gradient of the mean over samples: (softmax - one-hot target) / samples.
  at::Tensor backward(const at::Tensor& /*grad_output*/, echelon::Pass& pass) override {
    at::Tensor grad = pass.saved[1].mul_(pass.weight / double(pass.saved[1].size(0)));
    if (pass.scale.defined()) grad.mul_(pass.scale);
    return grad.to(pass.saved[0].scalar_type());
  }
};

void read(echelon::TrainerOptions& options, int argc, char** argv) {
  for (int i = 1; i < argc; i += 2) {
    if (argv[i] != std::string_view("--set") || i + 1 == argc)
      throw echelon::InvalidArgument(std::string(argv[i]) +
                                     " was not expected; options are given as --set KEY=VALUE");
    echelon::set_option(echelon::fields_of(options), argv[i + 1]);
  }
}

}  // namespace

std::unique_ptr<echelon::Layer> classification() { return std::make_unique<Classification>(); }

int train_on_patterns(int argc, char** argv, echelon::TrainerOptions options,
                      const std::function<echelon::Stack()>& model, double wanted) try {
  read(options, argc, argv);
  const auto seed = static_cast<std::uint64_t>(options.train.seed);
  const Patterns images(seed, 0), unseen(seed, 1);
  at::manual_seed(seed);  // torch's modules draw the same initial values on every rank
  echelon::Stack stack = model();
  const auto ranks = echelon::Communicator::world();
  const bool first = ranks->rank() == 0;

  echelon::Trainer trainer(stack, images, options, ranks);
  double loss = 0;
  trainer.on_step([&](const echelon::StepReport& report) {
    loss = report.loss;
    if (first && report.step % 50 == 0)
      std::printf("step %lld\tloss %.4f\n", static_cast<long long>(report.step), loss);
  });
  trainer.run();

  const double accuracy = trainer.evaluate(unseen, unseen_images);
  if (first)
    std::printf(
        "%lld steps: loss %.4f, accuracy %.1f %% on %lld images not seen before (chance: %.1f %%)\n",
        static_cast<long long>(trainer.step()), loss, 100 * accuracy,
        static_cast<long long>(unseen_images), 100.0 / Patterns::classes);
  return accuracy >= wanted ? 0 : 1;
} catch (const echelon::InvalidArgument& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 2;
} catch (const echelon::Error& error) {
  std::fprintf(stderr, "error: %s\n", error.what());
  return 1;
}
