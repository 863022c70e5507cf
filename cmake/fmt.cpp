// The functions of fmt, compiled once for all sources that use the same fmt. With FMT_HEADER_ONLY
// this file is empty, and every source compiles them again, which takes up to a quarter of its
// time.
#ifndef FMT_HEADER_ONLY

#include <fmt/format-inl.h>

#include <locale>

FMT_BEGIN_NAMESPACE

// Templates that format.h declares and uses, and format-inl.h defines.
namespace detail {
template auto dragonbox::to_decimal(float) noexcept -> dragonbox::decimal_fp<float>;
template auto dragonbox::to_decimal(double) noexcept -> dragonbox::decimal_fp<double>;
template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;
[[gnu::used]] constexpr auto get_locale_ref =
    &locale_ref::get<std::locale>;  // its namespace depends on the version
}  // namespace detail

FMT_END_NAMESPACE

#endif
