#include "echelon/models/weights_folder.h"

#include <fstream>
#include <functional>

#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "echelon/base/file.h"
#include "echelon/models/gpt2/gpt2.h"
#include "echelon/nn/tensor_file.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

namespace fs = std::filesystem;

const ModelOptions small{
    .layers = 2, .width = 8, .heads = 2, .vocab = 17, .context = 5, .tied = true};

Stack filled(const ModelOptions& options, at::ScalarType type = at::kFloat) {
  Stack stack = gpt(options);
  stack.allocate(at::kCPU, type, Gradients::no);
  stack.load(random_values(3));
  return stack;
}

void write(const fs::path& folder, const ModelOptions& options, const Stack& stack) {
  write_weights(folder, options, stack, stack.type(), [](const Parameter& p) { return p.value; });
}

// The same file with changed tensors: another name, another value, or removed if the name is empty.
void rewrite(const fs::path& folder,
             const std::function<void(std::string& name, at::Tensor& value)>& change) {
  std::vector<NamedTensor> tensors;
  {
    const safetensors::Reader reader(folder / "model.safetensors");
    for (const auto& entry : reader.header().entries) {
      std::string name = entry.name;
      at::Tensor value = tensor_of(reader, entry).clone();
      change(name, value);
      if (!name.empty())
        tensors.push_back(
            {name, value.sizes().vec(), value.scalar_type(), [value] { return value; }});
    }
  }
  write_tensors(folder / "model.safetensors", tensors, {{"format", "pt"}});
}

// config.json with one text replaced by another.
void replace(const fs::path& folder, const std::string& from, const std::string& to) {
  std::string text = read_file(folder / "config.json");
  const auto at = text.find(from);
  ASSERT_NE(at, std::string::npos) << from << " in " << text;
  std::ofstream(folder / "config.json") << text.replace(at, from.size(), to);
}

class Gpt2Folder : public testing::Test {
 protected:
  Gpt2Folder() { write(folder_.path(), small, stack_); }
  std::string path() const { return folder_.path().string(); }
  std::string reading_options() {
    return thrown<InvalidArgument>([&] { read_model_options(folder_.path()); });
  }
  std::string reading_values() {
    return thrown<InvalidArgument>([&] { read_weights(folder_.path(), small, stack_); });
  }

  ScratchFolder folder_;
  Stack stack_ = filled(small);
};

TEST(Gpt2FolderRoundTrip, KeepsSizesAndEveryBit) {
  for (const bool tied : {true, false}) {
    for (const auto type : {at::kFloat, at::kDouble, at::kBFloat16}) {
      ScratchFolder folder;
      ModelOptions options = small;
      options.tied = tied;
      const Stack stack = filled(options, type);
      write(folder.path(), options, stack);

      const ModelOptions read = read_model_options(folder.path());
      EXPECT_EQ(read.layers, 2);
      EXPECT_EQ(read.width, 8);
      EXPECT_EQ(read.heads, 2);
      EXPECT_EQ(read.vocab, 17);
      EXPECT_EQ(read.context, 5);
      EXPECT_EQ(read.tied, tied);
      Stack other = gpt(read);
      other.allocate(at::kCPU, type, Gradients::no);
      other.load(read_weights(folder.path(), read, other));
      for (const auto& p : stack.parameters()) {
        EXPECT_TRUE(at::equal(other.find(p.name)->value, p.value)) << p.name;
      }
    }
  }
}

TEST_F(Gpt2Folder, TakesTheBareModelsNamesToo) {
  rewrite(folder_.path(), [](std::string& name, at::Tensor&) {
    name = name.substr(std::string("transformer.").size());
  });
  Stack other = gpt(small);
  other.allocate(at::kCPU, at::kDouble, Gradients::no);
  other.load(read_weights(folder_.path(), small, other));
  for (const auto& p : stack_.parameters()) {
    EXPECT_TRUE(at::equal(other.find(p.name)->value, p.value.to(at::kDouble))) << p.name;
  }
}

TEST_F(Gpt2Folder, IsRefusedWithoutATensor) {
  rewrite(folder_.path(), [](std::string& name, at::Tensor&) {
    if (name == "transformer.h.1.mlp.c_fc.bias") name.clear();
  });
  EXPECT_EQ(reading_values(),
            path() + "/model.safetensors has no tensor transformer.h.1.mlp.c_fc.bias");
}

TEST_F(Gpt2Folder, IsRefusedWithATensorOfAnotherShape) {
  rewrite(folder_.path(), [](std::string& name, at::Tensor& value) {
    if (name == "transformer.h.0.attn.c_attn.weight") value = value.t().contiguous();
  });
  EXPECT_EQ(reading_values(), "transformer.h.0.attn.c_attn.weight in " + path() +
                                  "/model.safetensors has shape [24, 8]; the model needs [8, 24]");
}

TEST_F(Gpt2Folder, IsRefusedWithATensorOfIntegers) {
  rewrite(folder_.path(), [](std::string& name, at::Tensor& value) {
    if (name == "transformer.wpe.weight") value = value.to(at::kInt);
  });
  EXPECT_EQ(reading_values(), "transformer.wpe.weight in " + path() +
                                  "/model.safetensors has type I32, not a floating-point one");
}

TEST_F(Gpt2Folder, IsRefusedWhereAnArchitectureDiffers) {
  replace(folder_.path(), "\"gelu_new\"", "\"relu\"");
  EXPECT_EQ(
      reading_options(),
      path() + " has activation_function = \"relu\"; Echelon's GPT is built for \"gelu_new\"");
  replace(folder_.path(), "\"relu\"", "\"gelu_new\"");
  replace(folder_.path(), "\"model_type\": \"gpt2\"", "\"model_type\": \"t5\"");
  EXPECT_EQ(
      reading_options(),
      path() + " has model_type = \"t5\"; Echelon's models are gpt2, llama, bert, distilbert");
  replace(folder_.path(), "\"model_type\": \"t5\"", "\"n_inner\": 31");
  EXPECT_EQ(reading_options(), path() + " has n_inner = 31; Echelon's GPT is built for 32");
  replace(folder_.path(), "31", "null");
  EXPECT_EQ(read_model_options(folder_.path()).width, 8);
}

TEST_F(Gpt2Folder, IsCorruptWithoutItsSizes) {
  const auto reading = [&] { return thrown<Corrupt>([&] { read_model_options(folder_.path()); }); };
  replace(folder_.path(), "\"n_embd\": 8", "\"n_embd\": -8");
  EXPECT_EQ(reading(),
            path() + "/config.json: n_embd is -8, not a positive number of reasonable size");
  replace(folder_.path(), "\"n_embd\": -8", "\"n_embedding\": 8");
  EXPECT_EQ(reading(), path() + "/config.json has no n_embd");
  std::ofstream(folder_ / "config.json") << "[1, 2]";
  EXPECT_EQ(reading(), path() + "/config.json is not a JSON object");
  std::ofstream(folder_ / "config.json") << "[1, 2";
  EXPECT_EQ(reading(),
            path() + "/config.json is not JSON: it cannot be read on from line 1, column 6");
}

TEST_F(Gpt2Folder, IsRefusedWhereAFileIsMissing) {
  fs::rename(folder_ / "model.safetensors", folder_ / "other");
  EXPECT_EQ(reading_values(), path() + " has no model.safetensors");
  std::ofstream(folder_ / "model.safetensors.index.json") << "{}";
  EXPECT_EQ(
      reading_values(),
      path() +
          " has no model.safetensors; weights in several files are not read, save them as one");
  fs::remove(folder_ / "config.json");
  EXPECT_EQ(reading_options(), path() + " has no config.json");
  EXPECT_EQ(thrown<InvalidArgument>([] { read_model_options("/no/such/folder"); }),
            "there is no folder /no/such/folder to read weights from");
}

TEST_F(Gpt2Folder, IsCorruptWhereItsWeightsAreCutShort) {
  fs::resize_file(folder_ / "model.safetensors", fs::file_size(folder_ / "model.safetensors") - 1);
  const auto sentence = thrown<Corrupt>([&] { read_weights(folder_.path(), small, stack_); });
  EXPECT_NE(sentence.find("model.safetensors"), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("(an error"), std::string::npos) << sentence;
}

}  // namespace
}  // namespace echelon
