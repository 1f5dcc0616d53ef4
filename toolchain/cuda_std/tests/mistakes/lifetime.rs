include!("kernel.in.rs");

fn main() {
    let (mut y, x) = (Memory, Memory);
    let read = x.read();
    drop(x);
    launch(&scale, &Scale { y: y.write(), x: read, factor: 2.0 });
}
