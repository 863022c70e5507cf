# How our targets are compiled: warnings, third-party headers, fmt, precompiled headers. A target calls echelon_private.

# Warnings that depend on the optimiser's view of inlined library code are shown, never errors.
add_library(echelon_warnings INTERFACE)
target_compile_options(
  echelon_warnings
  INTERFACE -Wall -Wextra -Wshadow
            $<$<BOOL:${ECHELON_WERROR}>:-Werror>
            $<$<CXX_COMPILER_ID:GNU>:-Wno-error=maybe-uninitialized>
            $<$<CXX_COMPILER_ID:GNU>:-Wno-error=array-bounds>
            $<$<CXX_COMPILER_ID:GNU>:-Wno-error=free-nonheap-object>
            $<$<CXX_COMPILER_ID:GNU>:-Wno-error=stringop-overflow>
            $<$<CXX_COMPILER_ID:GNU>:-Wno-error=restrict>)

# Headers for our own targets, not for their users. They come after torch's folders, so that code which includes torch
# uses the fmt that torch's headers were written for.
function(echelon_headers target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/generated")
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:echelon_deps_headers>
                                          $<BUILD_INTERFACE:echelon_warnings>)
endfunction()

# Compiles fmt's functions once for all sources that use the same fmt, torch's or the distribution's: each has its own
# namespace. If fmt.cpp does not fit the version, fmt is compiled with every source instead.
function(echelon_fmt target)
  add_library(${target} STATIC "${PROJECT_SOURCE_DIR}/cmake/fmt.cpp")
  target_link_libraries(${target} PUBLIC ${ARGN})
  echelon_headers(${target})
  set(folders "")
  foreach(library IN LISTS ARGN)
    get_target_property(of_library ${library} INTERFACE_INCLUDE_DIRECTORIES)
    list(APPEND folders ${of_library})
  endforeach()
  # With the build's own options: what they inline may exist without them.
  set(CMAKE_TRY_COMPILE_CONFIGURATION ${CMAKE_BUILD_TYPE})
  try_compile(
    ${target}_fits
    SOURCES "${PROJECT_SOURCE_DIR}/cmake/fmt.cpp" "${PROJECT_SOURCE_DIR}/cmake/fmt_probe.cpp"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${folders};${ECHELON_fmt_INCLUDE}"
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
  if(NOT ${target}_fits)
    message(STATUS "fmt is compiled with every source, which takes longer: cmake/fmt.cpp does not fit its version")
    target_compile_definitions(${target} PUBLIC FMT_HEADER_ONLY=1)
  endif()
  install(TARGETS ${target} EXPORT echelonTargets)
endfunction()
echelon_fmt(echelon_fmt)

# Headers that most sources include, parsed once: about a third of the time of a source. Sources still include what they
# use; -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON checks that.
# The compiler uses a precompiled header only with the same options (a source with its own options has the property
# SKIP_PRECOMPILE_HEADERS); -fpch-preprocess is for ccache.
set(ECHELON_TORCH_FREE_HEADERS
    <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <cstring> <filesystem> <functional> <limits>
    <map> <memory> <mutex> <numeric> <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <utility>
    <vector> <fmt/format.h>)
set(ECHELON_COMMON_HEADERS ${ECHELON_TORCH_FREE_HEADERS} <ATen/Parallel.h> <ATen/core/Tensor.h> <ATen/ops/empty.h>)

# echelon_precompile(TARGET FAMILY headers…): those headers, compiled with the first target of a family.
function(echelon_precompile target family)
  get_property(first GLOBAL PROPERTY ECHELON_PRECOMPILED_${family})
  if(first)
    target_precompile_headers(${target} REUSE_FROM ${first})
  else()
    set_property(GLOBAL PROPERTY ECHELON_PRECOMPILED_${family} ${target})
    target_precompile_headers(${target} PRIVATE ${ARGN})
  endif()
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
endfunction()

echelon_precompile(echelon_fmt torch_free ${ECHELON_TORCH_FREE_HEADERS})
if(ECHELON_TORCH)
  echelon_fmt(echelon_torch_fmt Torch::torch)
  echelon_precompile(echelon_torch_fmt torch ${ECHELON_COMMON_HEADERS})
endif()

# Private settings of a target. With TORCH_FREE, it does not see torch.
function(echelon_private target)
  cmake_parse_arguments(ARG "TORCH_FREE" "" "" ${ARGN})
  echelon_headers(${target})
  if(ARG_TORCH_FREE)
    target_link_libraries(${target} PRIVATE echelon_fmt)
  else()
    target_link_libraries(${target} PRIVATE echelon_torch_fmt)
  endif()
endfunction()
