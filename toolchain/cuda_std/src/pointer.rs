//! Pointers to device memory that borrow it on the host.
//!
//! A parameter type with these in the place of raw pointers can only be filled in from memory that lives, of the right element
//! type, and shared or exclusive as the kernel needs it. In the kernel they are pointers.

use core::fmt;
use core::marker::PhantomData;

/// The address of elements that a kernel reads. On the host it borrows them.
#[repr(transparent)]
pub struct DevicePtr<'a, T>(*const T, PhantomData<&'a T>);

/// The address of elements that a kernel writes. On the host it borrows them exclusively, so it is not `Copy`.
#[repr(transparent)]
pub struct DevicePtrMut<'a, T>(*mut T, PhantomData<&'a mut T>);

impl<T> Clone for DevicePtr<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for DevicePtr<'_, T> {}

// SAFETY: the host holds an address that it can't access; whoever made it promises that the memory is borrowed for `'a`.
unsafe impl<T: Sync> Send for DevicePtr<'_, T> {}
// SAFETY: a shared reference to it gives copies, which may be sent.
unsafe impl<T: Sync> Sync for DevicePtr<'_, T> {}
// SAFETY: the host can't access the memory, whose borrow for `'a` is exclusive, as whoever made the address promises.
unsafe impl<T: Send> Send for DevicePtrMut<'_, T> {}
// SAFETY: a shared reference to it gives no access to the memory.
unsafe impl<T: Sync> Sync for DevicePtrMut<'_, T> {}

impl<T> DevicePtr<'_, T> {
    /// From a device address. The element type and the lifetime are the caller's claim.
    ///
    /// # Safety
    /// Until the lifetime ends, elements of type `T` at the address are valid for reads of work that is queued on their
    /// stream, and nobody writes them.
    pub const unsafe fn from_address(address: u64) -> Self {
        Self(core::ptr::without_provenance(address as usize), PhantomData)
    }

    /// The pointer, which the device may access.
    #[inline(always)]
    pub const fn as_ptr(self) -> *const T {
        self.0
    }
}

impl<T> DevicePtrMut<'_, T> {
    /// From a device address. The element type and the lifetime are the caller's claim.
    ///
    /// # Safety
    /// Until the lifetime ends, elements of type `T` at the address are valid for reads and writes of work that is queued on
    /// their stream, and nobody else uses them.
    pub const unsafe fn from_address(address: u64) -> Self {
        Self(core::ptr::without_provenance_mut(address as usize), PhantomData)
    }

    /// The pointer, which the device may access.
    #[inline(always)]
    pub const fn as_mut_ptr(&self) -> *mut T {
        self.0
    }

    /// The same memory for a shorter time, as for the parameters of one launch of several.
    #[inline(always)]
    pub const fn reborrow(&mut self) -> DevicePtrMut<'_, T> {
        DevicePtrMut(self.0, PhantomData)
    }
}

impl<T> fmt::Debug for DevicePtr<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.0, f)
    }
}

impl<T> fmt::Debug for DevicePtrMut<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.0, f)
    }
}
