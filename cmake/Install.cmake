# find_package(echelon) defines echelon::echelon and a target for each component. The user's project finds torch again,
# through ECHELON_PYTHON or TORCH_ROOT, by default where it was found here.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

# The installed program must not need its build folder. It finds torch's libraries in its prefix, relative to itself, so
# the prefix can be moved. The libraries of a CPU build of torch are copied there, with their licence. A CUDA build is
# gigabytes in a dozen packages: it is copied only on request, and otherwise loaded from where it was when Echelon was
# configured. `cmake --install build --component Unspecified` leaves torch out.
set(copy_torch ON)
if(TORCH_CUDA_VERSION)
  set(copy_torch OFF)
endif()
option(ECHELON_INSTALL_TORCH "Install the torch libraries that the program loads beside it" ${copy_torch})
set(torch_dir "${CMAKE_INSTALL_LIBDIR}/echelon")
if(TARGET echelon)
  if(ECHELON_INSTALL_TORCH)
    file(RELATIVE_PATH to_torch "/${CMAKE_INSTALL_BINDIR}" "/${torch_dir}")
    set_target_properties(echelon PROPERTIES INSTALL_RPATH "$ORIGIN/${to_torch}")
  else()
    set_target_properties(echelon PROPERTIES INSTALL_RPATH "${TORCH_LIBRARY_DIRS}")
  endif()
endif()
if(ECHELON_INSTALL_TORCH)
  # The libraries that the program loads, and their dependencies: torch ships its own OpenMP.
  file(GLOB torch_libraries "${TORCH_ROOT}/lib/libc10*.so*" "${TORCH_ROOT}/lib/libtorch.so*"
       "${TORCH_ROOT}/lib/libtorch_cpu.so*" "${TORCH_ROOT}/lib/libtorch_cuda*.so*" "${TORCH_ROOT}/lib/libgomp*.so*"
       "${TORCH_ROOT}/lib/libcu*.so*" "${TORCH_ROOT}/lib/libnv*.so*")
  file(GLOB torch_licences "${TORCH_ROOT}-*.dist-info/licenses/LICENSE" "${TORCH_ROOT}-*.dist-info/licenses/NOTICE")
  install(FILES ${torch_libraries} ${torch_licences} DESTINATION "${torch_dir}" COMPONENT torch)
endif()

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/echelon")
install(TARGETS echelon_all EXPORT echelonTargets)
install(EXPORT echelonTargets NAMESPACE echelon:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/echelonConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/echelonConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/echelonConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/echelonConfig.cmake" "${PROJECT_BINARY_DIR}/echelonConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTorch.cmake" DESTINATION "${package_dir}")
