#include "echelon/nn/tensor_file.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include "echelon/base/error.h"
#include "tests/base/scratch_folder.h"
#include "tests/base/thrown.h"

namespace echelon {
namespace {

NamedTensor named(std::string name, const at::Tensor& tensor) {
  return {std::move(name), tensor.sizes().vec(), tensor.scalar_type(), [tensor] { return tensor; }};
}

at::Tensor read(const safetensors::Reader& reader, const std::string& name) {
  return tensor_of(reader, *reader.find(name));
}

TEST(TensorFile, RoundTripsEveryType) {
  ScratchFolder folder;
  std::vector<NamedTensor> tensors;
  std::vector<at::Tensor> originals;
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt,
                          at::kChar, at::kByte, at::kBool}) {
    originals.push_back(at::arange(-3, 4, at::kDouble).abs().view({7, 1}).to(type));
    tensors.push_back(named(at::toString(type), originals.back()));
  }
  write_tensors(folder / "all.safetensors", tensors, {{"made by", "a test"}});
  const safetensors::Reader reader(folder / "all.safetensors");
  EXPECT_EQ(reader.header().metadata.at("made by"), "a test");
  ASSERT_EQ(reader.header().entries.size(), 9U);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor back = read(reader, tensors[i].name);
    EXPECT_EQ(back.scalar_type(), tensors[i].type);
    EXPECT_TRUE(at::equal(back, originals[i])) << tensors[i].name;
  }
}

TEST(TensorFile, RoundTripsEveryShape) {
  ScratchFolder folder;
  const std::vector<std::vector<std::int64_t>> shapes = {{}, {1}, {0}, {3, 0, 2}, {2, 3, 4, 5}};
  std::vector<NamedTensor> tensors;
  for (const auto& shape : shapes)
    tensors.push_back(named(std::to_string(tensors.size()), at::randn(shape)));
  write_tensors(folder / "file", tensors, {});
  const safetensors::Reader reader(folder / "file");
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    const at::Tensor back = read(reader, std::to_string(i));
    EXPECT_EQ(back.sizes(), shapes[i]);
    EXPECT_TRUE(at::equal(back, tensors[i].make()));
  }
}

TEST(TensorFile, WritesViewsByTheirElements) {
  ScratchFolder folder;
  const at::Tensor whole = at::arange(12, at::kFloat).view({3, 4});
  write_tensors(folder / "file", {named("t", whole.t()), named("column", whole.narrow(1, 2, 1))},
                {});
  const safetensors::Reader reader(folder / "file");
  EXPECT_TRUE(at::equal(read(reader, "t"), whole.t()));
  EXPECT_TRUE(at::equal(read(reader, "column"), whole.narrow(1, 2, 1)));
}

TEST(TensorFile, MakesEachTensorOnceAndCastsItToTheDeclaredType) {
  ScratchFolder folder;
  int asked = 0;
  write_tensors(folder / "file",
                {{"w", {2}, at::kBFloat16, [&] { return ++asked, at::full({2}, 1.5); }}}, {});
  EXPECT_EQ(asked, 1);
  const safetensors::Reader reader(folder / "file");
  EXPECT_EQ(reader.find("w")->dtype, "BF16");
  EXPECT_EQ(type_of(reader, *reader.find("w")), at::kBFloat16);
  EXPECT_TRUE(at::equal(read(reader, "w"), at::full({2}, 1.5, at::kBFloat16)));
}

TEST(TensorFile, ReadsDataThatIsNotAlignedForItsType) {
  ScratchFolder folder;
  const at::Tensor odd = at::ones({3}, at::kByte);
  const at::Tensor doubles = at::randn({5}, at::kDouble), halves = at::randn({4}, at::kBFloat16);
  write_tensors(folder / "file",
                {named("odd", odd), named("doubles", doubles), named("halves", halves)}, {});
  const safetensors::Reader reader(folder / "file");
  ASSERT_NE(reader.find("doubles")->begin % 8, 0U);
  EXPECT_TRUE(at::equal(read(reader, "doubles"), doubles));
  EXPECT_TRUE(at::equal(read(reader, "halves"), halves));
}

TEST(TensorFile, RefusesATypeThatEchelonDoesNotUse) {
  ScratchFolder folder;
  const std::vector<std::byte> bytes(4);
  safetensors::write(folder / "file", {{.name = "w", .dtype = "U16", .shape = {2}}}, {},
                     [&](std::size_t) { return std::span(bytes); });
  const safetensors::Reader reader(folder / "file");
  EXPECT_EQ(thrown<InvalidArgument>([&] { read(reader, "w"); }),
            "w in " + (folder / "file").string() + " has type U16, which Echelon does not use");
}

TEST(TensorFile, RefusesToWriteATypeThatItCouldNotRead) {
  ScratchFolder folder;
  const auto sentence = thrown<InvalidArgument>(
      [&] { write_tensors(folder / "file", {named("w", at::empty({2}, at::kComplexFloat))}, {}); });
  EXPECT_NE(sentence.find("w"), std::string::npos) << sentence;
  EXPECT_EQ(sentence.find("("), std::string::npos) << sentence;
  EXPECT_TRUE(folder.names().empty());
}

}  // namespace
}  // namespace echelon
