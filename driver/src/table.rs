//! The table: every `cu*` function that cust 0.3.2 references or Pascaline calls, as a forwarder that
//! [`cust_raw`]'s declaration of the same name links to. To add a function, add its line to the right group;
//! a function that is called and not listed is a link error.
//!
//! The names are the versioned ones that `cust_raw` declares (bindings of CUDA 11.4), which later drivers keep
//! exporting unchanged. Parameters whose declared type is a closed enum carry `#[open]`: a caller that declares
//! the function with an integer there may then pass values which `cust_raw` does not list.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64};

/// How far a call depends on the device; determines which scripted faults apply to it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Answered by the host alone; still works after a device fault.
    Host,
    /// Needs a live context.
    Device,
    /// Needs a live context and reports the faults of work queued before it.
    Waits,
}

/// One line of the table, with its address and its count of calls in this process.
pub(crate) struct Function {
    pub name: &'static str,
    pub reach: Reach,
    /// Calls since counting was switched on.
    pub calls: AtomicU64,
    /// Its address in the backend; null until the first call, and for good where the backend lacks it.
    pub address: AtomicPtr<c_void>,
}

impl Function {
    const fn new(name: &'static str, reach: Reach) -> Self {
        Self { name, reach, calls: AtomicU64::new(0), address: AtomicPtr::new(ptr::null_mut()) }
    }
}

/// The listed function `name`, with or without its version suffix (`cuMemFree` is `cuMemFree_v2`).
pub(crate) fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS
        .iter()
        .find(|f| f.name == name)
        .or_else(|| FUNCTIONS.iter().find(|f| f.name.strip_suffix("_v2") == Some(name)))
}

/// All functions that a script or a count can name.
pub(crate) fn functions() -> impl Iterator<Item = &'static Function> {
    FUNCTIONS.iter()
}

/// The list of functions, in groups by their [`Reach`]: calls a macro with it.
macro_rules! for_each_function {
    ($callback:ident) => {
        $callback! {
            Host {
                cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint);
                cuCtxGetCurrent(ctx: *mut CUcontext);
                cuCtxGetDevice(device: *mut CUdevice);
                cuCtxGetFlags(flags: *mut c_uint);
                cuCtxPopCurrent_v2(ctx: *mut CUcontext);
                cuCtxPushCurrent_v2(ctx: CUcontext);
                cuCtxSetCurrent(ctx: CUcontext);
                cuDeviceCanAccessPeer(can: *mut c_int, dev: CUdevice, peer: CUdevice);
                cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
                cuDeviceGetAttribute(value: *mut c_int, #[open] attribute: CUdevice_attribute, dev: CUdevice);
                cuDeviceGetByPCIBusId(dev: *mut CUdevice, pci_bus_id: *const c_char);
                cuDeviceGetCount(count: *mut c_int);
                cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
                cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice);
                cuDeviceGetName(name: *mut c_char, len: c_int, dev: CUdevice);
                cuDeviceGetP2PAttribute(
                    value: *mut c_int, #[open] attribute: CUdevice_P2PAttribute, src: CUdevice, dst: CUdevice
                );
                cuDeviceGetPCIBusId(pci_bus_id: *mut c_char, len: c_int, dev: CUdevice);
                cuDeviceGetUuid(uuid: *mut CUuuid, dev: CUdevice);
                cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int);
                cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice);
                cuDriverGetVersion(version: *mut c_int);
                cuInit(flags: c_uint);
                cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
            }
            Device {
                cuArray3DCreate_v2(array: *mut CUarray, descriptor: *const CUDA_ARRAY3D_DESCRIPTOR);
                cuArray3DGetDescriptor_v2(descriptor: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray);
                cuArrayDestroy(array: CUarray);
                cuCtxCreate_v2(ctx: *mut CUcontext, flags: c_uint, dev: CUdevice);
                cuCtxDestroy_v2(ctx: CUcontext);
                cuCtxDisablePeerAccess(peer: CUcontext);
                cuCtxEnablePeerAccess(peer: CUcontext, flags: c_uint);
                cuCtxGetCacheConfig(config: *mut CUfunc_cache);
                cuCtxGetLimit(value: *mut usize, #[open] limit: CUlimit);
                cuCtxGetSharedMemConfig(config: *mut CUsharedconfig);
                cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int);
                cuCtxSetCacheConfig(#[open] config: CUfunc_cache);
                cuCtxSetLimit(#[open] limit: CUlimit, value: usize);
                cuCtxSetSharedMemConfig(#[open] config: CUsharedconfig);
                cuDestroyExternalMemory(memory: CUexternalMemory);
                cuDevicePrimaryCtxRelease_v2(dev: CUdevice);
                cuDevicePrimaryCtxReset_v2(dev: CUdevice);
                cuDevicePrimaryCtxRetain(ctx: *mut CUcontext, dev: CUdevice);
                cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint);
                cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool);
                cuEventCreate(event: *mut CUevent, flags: c_uint);
                cuEventDestroy_v2(event: CUevent);
                cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
                cuEventRecord(event: CUevent, stream: CUstream);
                cuEventRecordWithFlags(event: CUevent, stream: CUstream, flags: c_uint);
                cuExternalMemoryGetMappedBuffer(
                    ptr: *mut CUdeviceptr, memory: CUexternalMemory,
                    descriptor: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC
                );
                cuFuncGetAttribute(value: *mut c_int, #[open] attribute: CUfunction_attribute, function: CUfunction);
                cuFuncSetAttribute(function: CUfunction, #[open] attribute: CUfunction_attribute, value: c_int);
                cuFuncSetCacheConfig(function: CUfunction, #[open] config: CUfunc_cache);
                cuFuncSetSharedMemConfig(function: CUfunction, #[open] config: CUsharedconfig);
                cuGraphAddKernelNode(
                    node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode,
                    num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS
                );
                cuGraphCreate(graph: *mut CUgraph, flags: c_uint);
                cuGraphDebugDotPrint(graph: CUgraph, path: *const c_char, flags: c_uint);
                cuGraphDestroy(graph: CUgraph);
                cuGraphExecDestroy(exec: CUgraphExec);
                cuGraphExecUpdate(
                    exec: CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode,
                    result: *mut CUgraphExecUpdateResult
                );
                cuGraphGetEdges(graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize);
                cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize);
                cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong);
                cuGraphInstantiate_v2(
                    exec: *mut CUgraphExec, graph: CUgraph, error_node: *mut CUgraphNode, log_buffer: *mut c_char,
                    buffer_size: usize
                );
                cuGraphKernelNodeGetParams(node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS);
                cuGraphLaunch(exec: CUgraphExec, stream: CUstream);
                cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType);
                cuGraphUpload(exec: CUgraphExec, stream: CUstream);
                cuImportExternalMemory(
                    memory: *mut CUexternalMemory, handle: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC
                );
                cuLaunchCooperativeKernel(
                    function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
                    block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_bytes: c_uint,
                    stream: CUstream, kernel_params: *mut *mut c_void
                );
                cuLaunchHostFunc(stream: CUstream, callback: CUhostFn, user_data: *mut c_void);
                cuLaunchKernel(
                    function: CUfunction, grid_dim_x: c_uint, grid_dim_y: c_uint, grid_dim_z: c_uint,
                    block_dim_x: c_uint, block_dim_y: c_uint, block_dim_z: c_uint, shared_bytes: c_uint,
                    stream: CUstream, kernel_params: *mut *mut c_void, extra: *mut *mut c_void
                );
                cuLinkAddData_v2(
                    state: CUlinkState, #[open] kind: CUjitInputType, data: *mut c_void, size: usize,
                    name: *const c_char, num_options: c_uint, options: *mut CUjit_option,
                    option_values: *mut *mut c_void
                );
                cuLinkComplete(state: CUlinkState, cubin: *mut *mut c_void, size: *mut usize);
                cuLinkCreate_v2(
                    num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void,
                    state: *mut CUlinkState
                );
                cuLinkDestroy(state: CUlinkState);
                cuMemAdvise(ptr: CUdeviceptr, count: usize, #[open] advice: CUmem_advise, device: CUdevice);
                cuMemAllocAsync(ptr: *mut CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemAllocFromPoolAsync(ptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
                cuMemAllocHost_v2(ptr: *mut *mut c_void, bytes: usize);
                cuMemAllocManaged(ptr: *mut CUdeviceptr, bytes: usize, flags: c_uint);
                cuMemAlloc_v2(ptr: *mut CUdeviceptr, bytes: usize);
                cuMemFreeAsync(ptr: CUdeviceptr, stream: CUstream);
                cuMemFreeHost(ptr: *mut c_void);
                cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, ptr: CUdeviceptr);
                cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
                cuMemHostAlloc(ptr: *mut *mut c_void, bytes: usize, flags: c_uint);
                cuMemHostGetDevicePointer_v2(device_ptr: *mut CUdeviceptr, ptr: *mut c_void, flags: c_uint);
                cuMemHostGetFlags(flags: *mut c_uint, ptr: *mut c_void);
                cuMemHostRegister_v2(ptr: *mut c_void, bytes: usize, flags: c_uint);
                cuMemHostUnregister(ptr: *mut c_void);
                cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const CUmemPoolProps);
                cuMemPoolDestroy(pool: CUmemoryPool);
                cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, pool: CUmemoryPool, location: *mut CUmemLocation);
                cuMemPoolGetAttribute(pool: CUmemoryPool, #[open] attribute: CUmemPool_attribute, value: *mut c_void);
                cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize);
                cuMemPoolSetAttribute(pool: CUmemoryPool, #[open] attribute: CUmemPool_attribute, value: *mut c_void);
                cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize);
                cuMemPrefetchAsync(ptr: CUdeviceptr, count: usize, dst: CUdevice, stream: CUstream);
                cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
                cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
                cuMemcpyPeer(
                    dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize
                );
                cuMemcpyPeerAsync(
                    dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize, stream: CUstream
                );
                cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
                cuMemsetD16Async(dst: CUdeviceptr, value: c_ushort, n: usize, stream: CUstream);
                cuMemsetD16_v2(dst: CUdeviceptr, value: c_ushort, n: usize);
                cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, n: usize, stream: CUstream);
                cuMemsetD32_v2(dst: CUdeviceptr, value: c_uint, n: usize);
                cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, n: usize, stream: CUstream);
                cuMemsetD8_v2(dst: CUdeviceptr, value: c_uchar, n: usize);
                cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
                cuModuleGetGlobal_v2(ptr: *mut CUdeviceptr, bytes: *mut usize, module: CUmodule, name: *const c_char);
                cuModuleLoad(module: *mut CUmodule, path: *const c_char);
                cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
                cuModuleLoadDataEx(
                    module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option,
                    option_values: *mut *mut c_void
                );
                cuModuleUnload(module: CUmodule);
                cuOccupancyAvailableDynamicSMemPerBlock(
                    shared_bytes: *mut usize, function: CUfunction, num_blocks: c_int, block_size: c_int
                );
                cuOccupancyMaxActiveBlocksPerMultiprocessor(
                    num_blocks: *mut c_int, function: CUfunction, block_size: c_int, shared_bytes: usize
                );
                cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                    num_blocks: *mut c_int, function: CUfunction, block_size: c_int, shared_bytes: usize,
                    flags: c_uint
                );
                cuOccupancyMaxPotentialBlockSize(
                    min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
                    shared_bytes_of: CUoccupancyB2DSize, shared_bytes: usize, block_size_limit: c_int
                );
                cuOccupancyMaxPotentialBlockSizeWithFlags(
                    min_grid_size: *mut c_int, block_size: *mut c_int, function: CUfunction,
                    shared_bytes_of: CUoccupancyB2DSize, shared_bytes: usize, block_size_limit: c_int, flags: c_uint
                );
                cuPointerGetAttribute(data: *mut c_void, #[open] attribute: CUpointer_attribute, ptr: CUdeviceptr);
                cuPointerGetAttributes(
                    num_attributes: c_uint, attributes: *mut CUpointer_attribute, data: *mut *mut c_void,
                    ptr: CUdeviceptr
                );
                cuProfilerStart();
                cuProfilerStop();
                cuStreamAddCallback(
                    stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint
                );
                cuStreamBeginCapture_v2(stream: CUstream, #[open] mode: CUstreamCaptureMode);
                cuStreamCreate(stream: *mut CUstream, flags: c_uint);
                cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
                cuStreamDestroy_v2(stream: CUstream);
                cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
                cuStreamGetCaptureInfo(stream: CUstream, status: *mut CUstreamCaptureStatus, id: *mut cuuint64_t);
                cuStreamGetCtx(stream: CUstream, ctx: *mut CUcontext);
                cuStreamGetFlags(stream: CUstream, flags: *mut c_uint);
                cuStreamGetPriority(stream: CUstream, priority: *mut c_int);
                cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
                cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
                cuSurfObjectCreate(object: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC);
                cuSurfObjectDestroy(object: CUsurfObject);
                cuSurfObjectGetResourceDesc(resource: *mut CUDA_RESOURCE_DESC, object: CUsurfObject);
                cuTexObjectCreate(
                    object: *mut CUtexObject, resource: *const CUDA_RESOURCE_DESC,
                    texture: *const CUDA_TEXTURE_DESC, view: *const CUDA_RESOURCE_VIEW_DESC
                );
                cuTexObjectDestroy(object: CUtexObject);
                cuTexObjectGetResourceDesc(resource: *mut CUDA_RESOURCE_DESC, object: CUtexObject);
            }
            Waits {
                cuCtxSynchronize();
                cuEventQuery(event: CUevent);
                cuEventSynchronize(event: CUevent);
                cuMemFree_v2(ptr: CUdeviceptr);
                cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
                cuMemcpy2D_v2(copy: *const CUDA_MEMCPY2D);
                cuMemcpyAtoH_v2(dst: *mut c_void, src: CUarray, src_offset: usize, bytes: usize);
                cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize);
                cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize);
                cuMemcpyHtoA_v2(dst: CUarray, dst_offset: usize, src: *const c_void, bytes: usize);
                cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize);
                cuStreamQuery(stream: CUstream);
                cuStreamSynchronize(stream: CUstream);
            }
        }
    };
}
pub(crate) use for_each_function;

macro_rules! functions {
    ($($reach:ident { $( $name:ident( $( $(#[$open:ident])? $arg:ident : $ty:ty ),* ); )* })*) => {
        /// A function's place in the table.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        pub(crate) enum Index { $($($name),*),* }

        const COUNT: usize = [$($(stringify!($name)),*),*].len();
        pub(crate) static FUNCTIONS: [Function; COUNT] =
            [$($(Function::new(stringify!($name), Reach::$reach)),*),*];
    };
}

for_each_function!(functions);
