# @NAME@: a model compiled by tcc, as the target @NAME@::@NAME@.
#
# @NAME@_RUNTIME_FILES lists the files that a program needs at run time. Install them into one folder.
get_filename_component(_tcc_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
set(@NAME@_RUNTIME_FILES "${_tcc_prefix}/lib/@FILES@")
foreach(_tcc_file IN LISTS @NAME@_RUNTIME_FILES)
  if(NOT EXISTS "${_tcc_file}")
    set(@NAME@_FOUND FALSE)
    set(@NAME@_NOT_FOUND_MESSAGE "${_tcc_file} is missing: copy the whole package")
    return()
  endif()
endforeach()
if(NOT TARGET @NAME@::@NAME@)
  add_library(@NAME@::@NAME@ SHARED IMPORTED)
  set_target_properties(@NAME@::@NAME@ PROPERTIES
    IMPORTED_LOCATION "${_tcc_prefix}/lib/@NAME@.so"
    IMPORTED_SONAME "@NAME@.so"
    INTERFACE_INCLUDE_DIRECTORIES "${_tcc_prefix}/include")
endif()
unset(_tcc_file)
unset(_tcc_prefix)
