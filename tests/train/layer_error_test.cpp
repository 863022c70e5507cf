// An error inside a layer is reported in one sentence that names the layer.
#include <gtest/gtest.h>

#include <ATen/Parallel.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>

#include <stdexcept>

#include "echelon/base/error.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/loss_layer.h"
#include "echelon/train/trainer.h"
#include "tests/base/thrown.h"
#include "tests/nn/user_module.h"

namespace echelon {
namespace {

const TensorDataset& numbers() {
  static const TensorDataset data(at::randn({40, 6}), at::randn({40, 4}));
  return data;
}

LossFunction mean_square() {
  return [](const at::Tensor& a, const at::Tensor& b) { return at::mse_loss(a, b); };
}

// Throws a user's own error, in forward or in backward.
class Faulty : public Layer {
 public:
  explicit Faulty(bool in_backward) : in_backward_(in_backward) {}
  at::Tensor forward(const at::Tensor& input, Pass& /*pass*/) override {
    if (!in_backward_) throw std::out_of_range("no such word\nin the table");
    return input;
  }
  at::Tensor backward(const at::Tensor& /*grad*/, Pass& /*pass*/) override {
    throw std::out_of_range("no such word");
  }

 private:
  bool in_backward_;
};

std::string error_of_run(Stack& stack) {
  at::set_num_threads(1);
  Trainer trainer(stack, numbers(), {.train = {.steps = 2, .batch = 8}});
  return thrown<Error>([&] { trainer.run(); });
}

TEST(LayerError, NamesTheLayerAndItsInput) {
  Stack stack;
  stack.add(UserModule("body", {part::Linear{6, 5}}).layer())
      .add(UserModule("head", {part::Tanh{}, part::Linear{7, 4}}).layer())
      .add(loss_layer(mean_square()));
  EXPECT_EQ(
      error_of_run(stack),
      "layer 1 (head), forward of [8, 5]: mat1 and mat2 shapes cannot be multiplied (8x5 and 7x4)");
}

TEST(LayerError, NamesTheLossToo) {
  Stack stack;
  stack.add(UserModule("body", {part::Linear{6, 5}}).layer()).add(loss_layer(mean_square()));
  const std::string error = error_of_run(stack);
  EXPECT_TRUE(error.starts_with("layer 1 (the loss), forward of [8, 5]: ")) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

TEST(LayerError, KeepsTheErrorOfAUsersLayer) {
  Stack forward;
  forward.add(std::make_unique<Faulty>(/*in_backward=*/false)).add(loss_layer(mean_square()));
  EXPECT_EQ(error_of_run(forward), "layer 0, forward of [8, 6]: no such word");
  Stack stack;
  stack.add(UserModule("body", {part::Linear{6, 4}}).layer())
      .add(std::make_unique<Faulty>(/*in_backward=*/true))
      .add(loss_layer(mean_square()));
  Trainer trainer(stack, numbers(), {.train = {.steps = 2, .batch = 8}});
  try {
    trainer.run();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "layer 1, backward of [8, 4]: no such word");
    EXPECT_THROW(std::rethrow_if_nested(error), std::out_of_range);
  }
}

TEST(LayerError, NamesLayersByTheCommonPrefixOfTheirParameters) {
  const Stack stack = gpt({.layers = 2, .width = 8, .heads = 2, .vocab = 16, .context = 4});
  EXPECT_EQ(stack.name_of(0), "layer 0 (transformer)");
  EXPECT_EQ(stack.name_of(1), "layer 1 (transformer.h.0)");
  EXPECT_EQ(stack.name_of(3), "layer 3 (transformer.ln_f)");
}

}  // namespace
}  // namespace echelon
