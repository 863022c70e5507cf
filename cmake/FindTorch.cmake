# Finds LibTorch in a Python package directory, without torch's own CMake files: those bring in
# Caffe2 and insist on a CUDA toolkit even where none of its code is compiled.
#
# Input (the first that is set):
#   TORCH_ROOT       the torch package directory (…/site-packages/torch)
#   ECHELON_PYTHON   an interpreter that can import torch; torch is located, not imported
#   otherwise        the python3 on PATH
#
# Result:
#   Torch::c10, Torch::cpu   the two base libraries
#   Torch::torch             everything: headers, libraries, and CUDA where the wheel has it
#   TORCH_ROOT, TORCH_VERSION, TORCH_CUDA_VERSION (empty for a CPU wheel)
#   TORCH_LIBRARY_DIRS       where the libraries are, for the run path of an installed program
#   TORCH_HAS_CUDA           the wheel has CUDA and the runtime's headers were found
#   TORCH_NO_CUDA_REASON     why not, in a few words
#
# Programs in a build tree get a run path to torch/lib, so they start without LD_LIBRARY_PATH.

include(FindPackageHandleStandardArgs)

set(_torch_root "${TORCH_ROOT}")
set(_torch_failure "TORCH_ROOT is '${TORCH_ROOT}', which is no torch package")
if(NOT _torch_root)
  set(_torch_python "${ECHELON_PYTHON}")
  if(NOT _torch_python)
    find_program(_torch_python3 python3)
    mark_as_advanced(_torch_python3)
    set(_torch_python "${_torch_python3}")
  endif()
  execute_process(
    COMMAND "${_torch_python}" -c
            "import importlib.util as u; s = u.find_spec('torch'); print(s.submodule_search_locations[0] if s else '')"
    OUTPUT_VARIABLE _torch_root OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  set(_torch_failure "'${_torch_python}' has no torch package")
endif()

set(_torch_library_dir "${_torch_root}/lib")
set(TORCH_VERSION "")
set(TORCH_CUDA_VERSION "")
if(_torch_root AND EXISTS "${_torch_root}/version.py")
  # A torch that is replaced in place must be read again.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${_torch_root}/version.py")
  file(READ "${_torch_root}/version.py" _torch_version_py)
  if(_torch_version_py MATCHES "__version__ *= *'([0-9]+\\.[0-9]+\\.[0-9]+)")
    set(TORCH_VERSION "${CMAKE_MATCH_1}")
  endif()
  if(_torch_version_py MATCHES "(^|\n)cuda[^=\n]*= *'([0-9.]+)'")
    set(TORCH_CUDA_VERSION "${CMAKE_MATCH_2}")
  endif()
endif()

foreach(_library c10 torch_cpu torch)
  set(_torch_${_library} "${_torch_library_dir}/lib${_library}.so")
  if(NOT EXISTS "${_torch_${_library}}")
    set(_torch_${_library} "")
  endif()
endforeach()

find_package_handle_standard_args(
  Torch
  REQUIRED_VARS _torch_root TORCH_VERSION _torch_c10 _torch_torch_cpu _torch_torch
  VERSION_VAR TORCH_VERSION
  HANDLE_VERSION_RANGE
  REASON_FAILURE_MESSAGE "${_torch_failure}")
if(NOT Torch_FOUND)
  return()
endif()
set(TORCH_ROOT "${_torch_root}")
set(TORCH_LIBRARY_DIRS "${_torch_library_dir}")

# The CUDA runtime: CUDA 13 wheels share one folder, CUDA 12 wheels have one a library. A wheel may
# hold only part of the headers (crt/ is packaged apart), so each is asked for what will be included.
set(TORCH_HAS_CUDA OFF)
set(TORCH_NO_CUDA_REASON "torch ${TORCH_VERSION} is a CPU build")
if(TORCH_CUDA_VERSION)
  string(REGEX MATCH "^[0-9]+" _cuda_major "${TORCH_CUDA_VERSION}")
  cmake_path(GET _torch_root PARENT_PATH _site_packages)
  file(GLOB _cuda_wheel_includes "${_site_packages}/nvidia/*/include")
  set(_cuda_toolkits $ENV{CUDA_HOME} /usr/local/cuda-${_cuda_major} /usr/local/cuda)
  set(_cuda_include "")
  foreach(_dir "${_site_packages}/nvidia/cu${_cuda_major}/include"
               "${_site_packages}/nvidia/cuda_runtime/include" ${_cuda_toolkits})
    foreach(_include "${_dir}" "${_dir}/include")
      if(NOT _cuda_include AND EXISTS "${_include}/cuda_runtime_api.h"
         AND EXISTS "${_include}/crt/host_defines.h")
        set(_cuda_include "${_include}")
      endif()
    endforeach()
  endforeach()
  set(_cudart "")
  foreach(_dir "${_site_packages}/nvidia/cu${_cuda_major}"
               "${_site_packages}/nvidia/cuda_runtime" ${_cuda_toolkits})
    foreach(_file lib/libcudart.so.${_cuda_major} lib64/libcudart.so.${_cuda_major})
      if(NOT _cudart AND EXISTS "${_dir}/${_file}")
        set(_cudart "${_dir}/${_file}")
      endif()
    endforeach()
  endforeach()
  if(_cuda_include AND _cudart)
    set(TORCH_HAS_CUDA ON)
    cmake_path(GET _cudart PARENT_PATH _cudart_dir)
    list(APPEND TORCH_LIBRARY_DIRS "${_cudart_dir}")
    set(TORCH_NO_CUDA_REASON "")
  elseif(_cudart)
    set(TORCH_NO_CUDA_REASON "the CUDA ${TORCH_CUDA_VERSION} headers (cuda_runtime_api.h) were not found")
  else()
    set(TORCH_NO_CUDA_REASON "libcudart.so.${_cuda_major} was not found")
  endif()
endif()

if(TARGET Torch::torch)
  return()
endif()

set(_torch_includes "${_torch_root}/include" "${_torch_root}/include/torch/csrc/api/include")

function(_torch_library target file)
  add_library(Torch::${target} SHARED IMPORTED)
  set_target_properties(
    Torch::${target}
    PROPERTIES IMPORTED_LOCATION "${file}"
               INTERFACE_INCLUDE_DIRECTORIES "${_torch_includes}"
               INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_torch_includes}"
               # The wheels have used the new ABI since 2.7, also where a compiler defaults to the old.
               INTERFACE_COMPILE_DEFINITIONS "_GLIBCXX_USE_CXX11_ABI=1"
               INTERFACE_COMPILE_FEATURES cxx_std_20
               INTERFACE_LINK_LIBRARIES "${ARGN}")
endfunction()

_torch_library(c10 "${_torch_c10}")
_torch_library(cpu "${_torch_torch_cpu}" Torch::c10)
_torch_library(torch "${_torch_torch}" Torch::cpu Torch::c10)

if(TORCH_HAS_CUDA)
  add_library(Torch::cudart SHARED IMPORTED)
  set_target_properties(Torch::cudart PROPERTIES IMPORTED_LOCATION "${_cudart}"
                                                 INTERFACE_INCLUDE_DIRECTORIES "${_cuda_include}")
  # ATen's CUDA headers include cuBLAS, cuSPARSE and cuSOLVER; with CUDA 12 wheels each has a folder.
  target_include_directories(Torch::cudart SYSTEM INTERFACE "${_cuda_include}" ${_cuda_wheel_includes})
  _torch_library(c10_cuda "${_torch_library_dir}/libc10_cuda.so" Torch::c10 Torch::cudart)
  # Kernels register themselves when libtorch_cuda is loaded. Few symbols are named, so a linker that
  # drops unneeded libraries would drop it; one argument keeps the flags and the library together.
  set_property(
    TARGET Torch::torch APPEND
    PROPERTY INTERFACE_LINK_LIBRARIES
             "-Wl,--push-state,--no-as-needed,${_torch_library_dir}/libtorch_cuda.so,--pop-state"
             Torch::c10_cuda)
  # Its own dependencies (cuBLAS, cuDNN, …) are found through its run path, not at link time.
  set_property(TARGET Torch::torch APPEND PROPERTY INTERFACE_LINK_OPTIONS "LINKER:--allow-shlib-undefined")
endif()
