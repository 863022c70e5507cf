# find_package(echelon) gives echelon::echelon and a target for each room. Torch is found again by the
# user's project, through ECHELON_PYTHON or TORCH_ROOT, by default where it was found here.

include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/echelon")
install(TARGETS echelon_all EXPORT echelonTargets)
install(EXPORT echelonTargets NAMESPACE echelon:: DESTINATION "${package_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/echelonConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/echelonConfig.cmake" INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/echelonConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/echelonConfig.cmake" "${PROJECT_BINARY_DIR}/echelonConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/FindTorch.cmake" DESTINATION "${package_dir}")
