// Light through a scene of spheres. Included by the GPU crate and by the test that computes the same picture on the host: so without `//!`.
// Sources: Kajiya, "The Rendering Equation" (1986); Marsaglia, "Xorshift RNGs" (2003); Schlick, "An Inexpensive BRDF Model" (1994).

#[cfg(target_arch = "nvptx64")]
use cuda_std::GpuFloat;
use glam::Vec3;

/// The most times that light is scattered on its way to the eye.
const BOUNCES: u32 = 8;
/// Nearer hits are the surface that the ray comes from.
const NEAREST: f32 = 1e-3;

/// What happens to light on a surface.
#[cfg_attr(target_arch = "nvptx64", expect(dead_code, reason = "the host makes the scene"))]
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Material {
    /// Scattered to all sides.
    Diffuse,
    /// Mirrored, but for `roughness`.
    Metal { roughness: f32 },
    /// Mirrored or refracted.
    Glass { index: f32 },
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sphere {
    pub centre: Vec3,
    pub radius: f32,
    pub colour: Vec3,
    pub material: Material,
}

struct Random(u32);

impl Random {
    /// Of a pixel and sample: as different as their numbers' bits are mixed.
    fn new(pixel: u32, sample: u32) -> Self {
        let mut bits = pixel.wrapping_mul(0x9e37_79b9) ^ sample.wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ bits >> 16).wrapping_mul(0x7feb_352d);
        Self((bits ^ bits >> 15) | 1)
    }

    /// From 0 to 1, without 1.
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        (self.0 >> 8) as f32 * (1.0 / 16_777_216.0)
    }

    /// A point in the unit ball, by rejection.
    fn in_ball(&mut self) -> Vec3 {
        loop {
            let point = Vec3::new(self.next(), self.next(), self.next()) * 2.0 - Vec3::ONE;
            if point.dot(point) < 1.0 {
                return point;
            }
        }
    }
}

fn unit(v: Vec3) -> Vec3 {
    v / v.dot(v).sqrt()
}

fn mirrored(direction: Vec3, normal: Vec3) -> Vec3 {
    direction - normal * (2.0 * direction.dot(normal))
}

/// The nearest sphere on a ray of unit length, and its distance.
fn hit(spheres: &[Sphere], from: Vec3, direction: Vec3) -> Option<(&Sphere, f32)> {
    let mut nearest = None;
    let mut most = f32::INFINITY;
    for sphere in spheres {
        let to = from - sphere.centre;
        let half = to.dot(direction);
        let square = half * half - (to.dot(to) - sphere.radius * sphere.radius);
        if square < 0.0 {
            continue;
        }
        let root = square.sqrt();
        for distance in [-half - root, -half + root] {
            if distance > NEAREST && distance < most {
                most = distance;
                nearest = Some(sphere);
                break;
            }
        }
    }
    nearest.map(|sphere| (sphere, most))
}

/// Where light goes on from a surface whose normal is `outward`; `None` where it is absorbed.
fn scattered(material: Material, direction: Vec3, outward: Vec3, random: &mut Random) -> Option<Vec3> {
    let enters = direction.dot(outward) < 0.0;
    let normal = if enters { outward } else { -outward };
    match material {
        Material::Diffuse => {
            let to = normal + unit(random.in_ball());
            Some(if to.dot(to) < 1e-8 { normal } else { unit(to) })
        }
        Material::Metal { roughness } => {
            let to = unit(mirrored(direction, normal) + random.in_ball() * roughness);
            (to.dot(normal) > 0.0).then_some(to)
        }
        Material::Glass { index } => {
            let ratio = if enters { 1.0 / index } else { index };
            let cosine = (-direction.dot(normal)).min(1.0);
            let across = (direction + normal * cosine) * ratio;
            let square = 1.0 - across.dot(across);
            let least = (1.0 - ratio) / (1.0 + ratio) * ((1.0 - ratio) / (1.0 + ratio));
            let rest = 1.0 - cosine;
            let reflected = least + (1.0 - least) * (rest * rest * rest * rest * rest);
            let to = match square < 0.0 || random.next() < reflected {
                true => mirrored(direction, normal),
                false => across - normal * square.sqrt(),
            };
            Some(unit(to))
        }
    }
}

/// The light of one sample of a pixel of a picture of `width` × `height`.
pub fn sampled(spheres: &[Sphere], pixel: u32, sample: u32, width: u32, height: u32) -> Vec3 {
    let mut random = Random::new(pixel, sample);
    let (column, row) = ((pixel % width) as f32 + random.next(), (pixel / width) as f32 + random.next());
    let side = height as f32;
    let mut from = Vec3::new(0.0, 0.6, 3.0);
    let mut direction =
        unit(Vec3::new((column - 0.5 * width as f32) / side, (0.5 * side - row) / side - 0.1, -1.0));
    let mut light = Vec3::ONE;
    for _ in 0..BOUNCES {
        let Some((sphere, distance)) = hit(spheres, from, direction) else {
            let up = 0.5 * (direction.y + 1.0);
            return light * (Vec3::ONE * (1.0 - up) + Vec3::new(0.5, 0.7, 1.0) * up);
        };
        from += direction * distance;
        let outward = (from - sphere.centre) / sphere.radius;
        match scattered(sphere.material, direction, outward, &mut random) {
            Some(to) => direction = to,
            None => return Vec3::ZERO,
        }
        light *= sphere.colour;
    }
    Vec3::ZERO
}
